"""Networks for ratings: who gave how many stars to what."""

import torch
from torch import Tensor, nn

from privet import _check
from privet.models.base import register


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
