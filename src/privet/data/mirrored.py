"""Scattering features of colour pictures that do not tell a picture from its mirror image.

Whoever is in a picture faces left as often as right. Features that are the same for both lose nothing that a class
depends on, and are half as many: noise of a private step lies in half as many weights, which nothing else pays for.
"""

import functools

import torch
from torch import Tensor

from privet.data.scattering import Scattering, normalised

VERSION = "mirrored 1"  # changes with whatever changes the result
FLOOR = 1e-6  # of a variance; fine detail of a faint colour lies below 1e-5
_OPPONENT = ((1 / 3, 1 / 3, 1 / 3), (1 / 2, -1 / 2, 0.0), (1 / 4, 1 / 4, -1 / 2))  # light, red-green, yellow-blue


def mirrored(images: Tensor, transform: Scattering) -> Tensor:
    """Scattering of light and two opponent colours, that of the mirror image added, one half kept and normalised.

        F(c, y, x) = S(c, y, x) + S(m(c), y, W - 1 - x),   x < W / 2,   m(c) the path with its directions mirrored

    The other half repeats it: F(m(c), y, W - 1 - x) = F(c, y, x). (N, 3, side, side) or (N, 1, side, side) to
    (N, C K, W, W / 2), W = side / 2^J, the half rounded up. `transform` must be centred, for places to have a mirror
    image; that they lie on a grid leaves a small difference.

    >>> mirrored(torch.rand(2, 3, 32, 32), Scattering(side=32, centred=True)).shape
    torch.Size([2, 243, 8, 4])
    """
    if images.shape[1] == 3:
        images = torch.einsum("kc,nchw->nkhw", torch.tensor(_OPPONENT), images)
    found = transform(images)
    paths = _mirror_paths(transform.scales, transform.directions)
    other = torch.cat([part[:, paths] for part in torch.split(found, transform.channels, 1)], 1).flip(-1)
    return normalised((found + other)[..., : -(-found.shape[-1] // 2)], floor=FLOOR)


@functools.cache
def _mirror_paths(scales: int, directions: int) -> Tensor:
    """The path that each becomes when left and right change places: direction k becomes L - k, as angles do."""
    turned = [-k % directions for k in range(directions)]
    first = [1 + j * directions + k for j in range(scales) for k in turned]
    pairs = scales * (scales - 1) // 2
    start = 1 + scales * directions
    second = [start + (pair * directions + a) * directions + b for pair in range(pairs) for a in turned for b in turned]
    return torch.tensor([0, *first, *second])
