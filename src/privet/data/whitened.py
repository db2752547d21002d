"""Features seen from the middle of those of made-up pictures, in the directions in which these spread.

All pictures have much in common, and noise is added along with it: half of what scattering gives for a digit is the
mean over all digits, which tells nothing. Where features spread little they learn slowly. Both could be learned from
the private pictures, at a price; learned from made-up ones they cost nothing, and nothing of the data enters.
"""

import torch
from torch import Tensor

PICTURES = 2000  # that are made up
DIRECTIONS = 600  # that are kept, those of the largest spread: 97 % of it
POWER = 0.3  # 0 leaves the spread as it is, 0.5 makes it the same in all directions
LEAST = 512  # rows of a product
FLOOR = 1e-3  # of the largest variance: directions below it are not made much larger


def whitening(features: Tensor, *, directions: int = DIRECTIONS, power: float = POWER) -> Tensor:
    """(d + 1, k): the map of `whitened`, from public features (N, d) of which k = min(directions, N - 1) are kept.

        (x - m) U diag(v / v_1 + FLOOR)^-power,   U and v the directions and variances of the features, m their mean

    as a matrix with the constant in the last row. In double precision, by the N x N inner products, with N < d.

    >>> far = torch.tensor([[5.0, 1.0, 0.0], [5.0, -1.0, 0.0], [5.0, 0.0, 0.1], [5.0, 0.0, -0.1]])
    >>> whitening(far, directions=1, power=0.5).abs().round(decimals=2).tolist()
    [[0.0], [1.0], [0.0], [0.0]]
    """
    wide = features.double()
    centre = wide.mean(0)
    wide = wide - centre
    variances, sides = torch.linalg.eigh(wide @ wide.T / len(wide))
    kept = min(directions, len(wide) - 1)
    variances, sides = variances.flip(0)[:kept].clamp(min=0), sides.flip(1)[:, :kept]
    spread = wide.T @ sides / (variances * len(wide)).sqrt().clamp(min=1e-12)
    matrix = spread * (variances / variances[0] + FLOOR) ** -power
    return torch.cat([matrix, -(centre @ matrix)[None]]).float()


def whitened(features: Tensor, matrix: Tensor) -> Tensor:
    """(N, k): features (N, d) through the map, each row then scaled to a mean square of 1, by itself.

    A product of few rows is rounded in another way than one of many, and then the number of records would show: to
    few rows, empty ones are added.
    """
    padded = torch.cat([features, features.new_zeros(max(0, LEAST - len(features)), features.shape[1])])
    found = (padded @ matrix[:-1] + matrix[-1])[: len(features)]
    return found / found.square().mean(1, keepdim=True).sqrt().clamp(min=1e-6)
