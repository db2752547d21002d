"""Networks of the papers beyond those of the product: residual, for words and characters, for ratings."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from privet import _check
from privet.errors import InvalidValue
from privet.models.networks import check_image, register


class StandardConv(nn.Conv2d):
    """A convolution whose filters are brought to mean 0 and variance 1 before use (Qiao et al. 2019)."""

    def forward(self, x: Tensor) -> Tensor:
        centred = self.weight - self.weight.mean(dim=(1, 2, 3), keepdim=True)
        spread = (centred.square().mean(dim=(1, 2, 3), keepdim=True) + 1e-5).rsqrt()
        return F.conv2d(x, centred * spread, self.bias, self.stride, self.padding)


class Block(nn.Module):
    """Two convolutions 3 x 3 with group norm, added to the input; a 1 x 1 convolution where the shape changes."""

    def __init__(self, *, before: int, after: int, stride: int, groups: int) -> None:
        super().__init__()
        self.conv1 = StandardConv(before, after, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(groups, after)
        self.conv2 = StandardConv(after, after, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(groups, after)
        same = stride == 1 and before == after
        self.short = nn.Identity() if same else StandardConv(before, after, 1, stride=stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(inner + self.short(x))


@register("resnet")
def resnet(
    *, shape: tuple[int, int, int], classes: int, depth: int = 20, width: int = 16, groups: int = 8
) -> nn.Module:
    """A residual network of `depth` = 6 n + 2 layers in three stages of `width`, 2 `width` and 4 `width` filters.

    The plan of He et al. 2016 for CIFAR10, with group norm in the place of batch norm, which would mix examples, and
    standardised weights. It stands in for the pretrained NFNets of Auto DP-SGD (arXiv:2312.02400), Section 5, whose
    weights cannot be shipped. 272,282 parameters for 32 x 32 colour images of 10 classes.
    """
    check_image("resnet", shape, least=8)
    _check.whole(depth=depth, width=width, groups=groups)
    if depth < 8 or (depth - 2) % 6:
        raise InvalidValue(f"depth={depth} must be 6 n + 2. Each stage has n blocks of two layers. Take 8, 14 or 20.")
    if width % groups:
        raise InvalidValue(f"groups={groups} must divide width={width}. A group holds whole filters. Change one.")
    body: list[nn.Module] = [
        StandardConv(shape[0], width, 3, padding=1, bias=False), nn.GroupNorm(groups, width), nn.ReLU(),
    ]  # fmt: skip
    before = width
    for stage in range(3):
        after = width * 2**stage
        for place in range((depth - 2) // 6):
            stride = 2 if stage > 0 and place == 0 else 1
            body.append(Block(before=before, after=after, stride=stride, groups=groups))
            before = after
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes))


# --- words and characters ---------------------------------------------------------------------------


class EmbeddingMLP(nn.Module):
    """The mean of the words' rows over all positions, one hidden layer with ReLU, the output layer."""

    def __init__(self, *, words: int, classes: int, width: int, hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        nn.init.uniform_(self.embedding.weight, -0.05, 0.05)  # as Keras starts, in which the paper's was written
        self.hidden = nn.Linear(width, hidden)
        self.output = nn.Linear(hidden, classes)

    def forward(self, words: Tensor) -> Tensor:
        pooled = self.embedding(words).mean(1)  # (B, width)
        return self.output(torch.relu(self.hidden(pooled)))  # type: ignore[no-any-return]


@register("embedding-mlp")
def embedding_mlp(*, words: int, classes: int, width: int = 16, hidden: int = 16) -> nn.Module:
    """Words embedded into 16 units, averaged over the text, 16 units with ReLU, the output layer.

    Bu et al. 2019 (arXiv:1911.11607), Section 4.1, for IMDb: 160,306 parameters for 10,000 words and 2 classes. As
    there, padding takes part in the mean and has a row of its own. Du et al. 2021, Table 2, train "an MLP" on IMDb
    whose layers the text does not give; this is the network we run for them.
    """
    _check.whole(width=width, hidden=hidden)
    return EmbeddingMLP(words=words, classes=classes, width=width, hidden=hidden)


class Bag(nn.Module):
    """The sum of one row of class scores for each word, over the root of the number of words; a bias if asked for."""

    def __init__(self, *, words: int, classes: int, bias: bool) -> None:
        super().__init__()
        self.scores = nn.Embedding(words, classes, padding_idx=0)
        nn.init.zeros_(self.scores.weight)
        self.bias = nn.Parameter(torch.zeros(classes)) if bias else None

    def forward(self, words: Tensor) -> Tensor:
        there = words != 0  # noise reaches the row of the padding too: it must not count
        count = there.sum(1, keepdim=True).clamp(min=1)
        total = (self.scores(words) * there.unsqueeze(-1)).sum(1)
        found: Tensor = total / count.sqrt()
        return found if self.bias is None else found + self.bias


@register("bag")
def bag(*, words: int, classes: int, bias: str = "none") -> nn.Module:
    """Logistic regression on word counts, each text scaled by the root of its length: the linear model for words.

    A text without repeats then has length one. A bias is one more input of 1: it would take half of what clipping
    leaves of each example, and words that most texts share stand in for it. 20,000 parameters for 10,000
    words and 2 classes.
    """
    _check.one_of(("none", "learned"), bias=bias)
    return Bag(words=words, classes=classes, bias=bias == "learned")


class Recurrent(nn.Module):
    """Embedded symbols through an LSTM. One direction: its last output. Both: the mean over the positions."""

    def __init__(self, *, words: int, classes: int, width: int, hidden: int, layers: int, both: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width, padding_idx=0)
        self.lstm = nn.LSTM(width, hidden, layers, batch_first=True, bidirectional=both)
        self.output = nn.Linear(hidden * (2 if both else 1), classes)

    def forward(self, symbols: Tensor) -> Tensor:
        read, _ = self.lstm(self.embedding(symbols))  # (B, T, H)
        return self.output(read.mean(1) if self.lstm.bidirectional else read[:, -1])  # type: ignore[no-any-return]


@register("char-lstm")
def char_lstm(*, words: int, classes: int, width: int = 64, hidden: int = 128, layers: int = 1) -> nn.Module:
    """Characters embedded into 64 units, one LSTM layer of 128 units, the output layer on its last state.

    Du et al. 2021, Table 3, train "an LSTM" to tell the language of a name; the text does not give its sizes. These are
    those of the well-known example of the Opacus library for the same task. 105,554 parameters for 60 characters and
    18 classes. No dropout.
    """
    _check.whole(width=width, hidden=hidden, layers=layers)
    return Recurrent(words=words, classes=classes, width=width, hidden=hidden, layers=layers, both=False)


@register("bilstm")
def bilstm(*, words: int, classes: int, width: int = 64, hidden: int = 64, layers: int = 1) -> nn.Module:
    """Words embedded into 64 units, an LSTM of 64 units in both directions, the output layer on the mean state.

    Auto DP-SGD (arXiv:2312.02400), Section 5 and Table 5, names "the BiLSTM model" for AG News and no sizes; these are
    ours, without dropout. 707,076 parameters for 10,000 words and 4 classes.
    """
    _check.whole(width=width, hidden=hidden, layers=layers)
    return Recurrent(words=words, classes=classes, width=width, hidden=hidden, layers=layers, both=True)


# --- ratings ----------------------------------------------------------------------------------------


# Of `stars`, all public: the spread that factors start with, how fast they move, and how slowly what all ratings share
_START, _FACTORS, _KINDS = 0.1, 4.0, 0.05


class CollaborativeFiltering(nn.Module):
    """Two branches on (user, movie): products of small embeddings, and larger embeddings side by side."""

    def __init__(self, *, users: int, movies: int, classes: int, factors: int, width: int) -> None:
        super().__init__()
        self.user_factors = nn.Embedding(users, factors)
        self.movie_factors = nn.Embedding(movies, factors)
        self.user = nn.Embedding(users, width)
        self.movie = nn.Embedding(movies, width)
        self.output = nn.Linear(factors + 2 * width, classes)
        for table in (self.user_factors, self.movie_factors, self.user, self.movie):
            nn.init.uniform_(table.weight, -0.05, 0.05)  # unit normals, PyTorch's own, would start far from any rating

    def forward(self, pairs: Tensor) -> Tensor:
        user, movie = pairs[:, 0], pairs[:, 1]
        left = self.user_factors(user) * self.movie_factors(movie)  # (B, factors)
        right = torch.cat([self.user(user), self.movie(movie)], 1)  # (B, 2 width)
        return self.output(torch.cat([left, right], 1))  # type: ignore[no-any-return]


@register("ncf")
def ncf(*, users: int, movies: int, classes: int, factors: int = 5, width: int = 10) -> nn.Module:
    """Simplified neural collaborative filtering: five latent factors multiplied, ten side by side, one output layer.

    Bu et al. 2019 (arXiv:1911.11607), Section 4.1, for MovieLens 1M: 146,320 parameters for 6,040 users, 3,706 movies
    and five kinds of rating. Embeddings start uniform in [-0.05, 0.05], on which the paper is silent.
    """
    _check.whole(factors=factors, width=width)
    return CollaborativeFiltering(users=users, movies=movies, classes=classes, factors=factors, width=width)


class Stars(nn.Module):
    """One number z for (user, movie); k stars more or fewer than the middle have the logit k z + c_k."""

    stars: Tensor

    def __init__(self, *, users: int, movies: int, classes: int, factors: int) -> None:
        super().__init__()
        self.user = nn.Embedding(users, factors + 1)
        self.movie = nn.Embedding(movies, factors + 1)
        self.kinds = nn.Parameter(torch.zeros(classes))
        self.register_buffer("stars", torch.arange(classes) - (classes - 1) / 2, persistent=False)
        for table in (self.user, self.movie):
            nn.init.normal_(table.weight, std=_START)
            nn.init.zeros_(table.weight[:, -1])

    def forward(self, pairs: Tensor) -> Tensor:
        user, movie = self.user(pairs[:, 0]), self.movie(pairs[:, 1])  # (B, factors + 1)
        alike = (user[:, :-1] * movie[:, :-1]).sum(1)
        z = _FACTORS * alike + user[:, -1] + movie[:, -1]
        return _KINDS * (self.kinds + z[:, None] * (self.stars / _KINDS))  # type: ignore[no-any-return]


@register("stars")
def stars(*, users: int, movies: int, classes: int, factors: int = 4) -> nn.Module:
    """How much a user likes, how much a movie is liked, and `factors` in which both must agree: one number a rating.

        z = b_u + b_m + s <p_u, q_m>,   logit of k stars from the middle = k z + c_k

    The derivative of the cross-entropy by z is the expected number of stars less the stars that were given: what the
    measure asks for. All that a rating moves is two rows and c. One learning rate serves all: c, which every rating
    moves, enters by a factor of 0.05, and the product by s = 4. 49,965 parameters for 6,040 users, 3,952 movies and
    five kinds.
    """
    _check.whole(factors=factors)
    return Stars(users=users, movies=movies, classes=classes, factors=factors)
