"""Networks that read words or characters, given as whole numbers; 0 is padding and stands in front."""

import torch
from torch import Tensor, nn

from privet import _check
from privet.models.base import register


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
