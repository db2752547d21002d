"""Networks for ratings: who gave how many stars to what."""

import torch
from torch import Tensor, nn

from privet import _check
from privet.models.base import register

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
