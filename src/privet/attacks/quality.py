"""How good reconstructions are: mean squared error, PSNR, SSIM, and whether the true record can be told from others."""

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.nn import functional as F

WINDOW, SPREAD = 11, 1.5  # of SSIM: a Gaussian of 11 x 11
K1, K2 = 0.01, 0.03
SEEN = 0.9  # SSIM above this: one would say that it is the same picture


def mse(found: Tensor, true: Tensor) -> Tensor:
    """The mean squared error of each image, (N,), with what was found brought to [0, 1], as a viewer would.

    >>> mse(torch.full((1, 1, 2, 2), 7.0), torch.zeros(1, 1, 2, 2))
    tensor([1.])
    """
    return (_shown(found) - true).flatten(1).square().mean(1)


def psnr(found: Tensor, true: Tensor) -> Tensor:
    """The peak signal-to-noise ratio of each image in decibel: -10 log10 of its mean squared error; at most 150."""
    return -10 * mse(found, true).clamp(min=1e-15).log10()


def ssim(found: Tensor, true: Tensor) -> Tensor:
    """The structural similarity of each image (N, C, H, W) in [0, 1]: 1 if they are the same, near 0 if unrelated.

        mean over windows of (2 m m' + c1)(2 s + c2) / ((m^2 + m'^2 + c1)(v + v' + c2)),   c = (K 1)^2

    with means m, variances v and covariance s under a Gaussian window of 11 x 11 with spread 1.5 (or the whole image,
    where it is smaller), channels averaged. Source: Wang, Bovik, Sheikh, Simoncelli 2004, section III-B.

    >>> x = torch.rand(1, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    >>> round(float(ssim(x, x)), 6), abs(float(ssim(x, 1 - x))) > 0.5
    (1.0, True)
    """
    a, b = _shown(found).double(), true.double()
    channels, window = a.shape[1], _window(a.shape[-2:]).to(a)

    def blurred(x: Tensor) -> Tensor:
        return F.conv2d(x, window.expand(channels, 1, *window.shape), groups=channels)

    m, n = blurred(a), blurred(b)
    v, w, s = blurred(a * a) - m * m, blurred(b * b) - n * n, blurred(a * b) - m * n
    c1, c2 = K1**2, K2**2
    each = (2 * m * n + c1) * (2 * s + c2) / ((m * m + n * n + c1) * (v + w + c2))
    return each.flatten(1).mean(1).to(found.dtype)


def _window(sides: torch.Size) -> Tensor:
    lines = []
    for side in sides:
        width = min(WINDOW, side)
        at = torch.arange(width, dtype=torch.float64) - (width - 1) / 2
        line = torch.exp(-(at**2) / (2 * SPREAD**2))
        lines.append(line / line.sum())
    return lines[0][:, None] * lines[1][None, :]


def ranks(found: Tensor, candidates: Tensor, true: Tensor) -> Tensor:
    """How many candidates are nearer to each reconstruction than the true one, (N,): 0 means that it is identified.

    `found` is (N, *shape), `candidates` (K, *shape), `true` (N,) the place of the truth among them.
    """
    apart = torch.cdist(_shown(found).flatten(1).double(), candidates.flatten(1).double())
    return ranks_of(-apart, true)


def ranks_of(scores: Tensor, true: Tensor) -> Tensor:
    """How many candidates score at least as well as the true one, itself left out, (N,); what is not a number does."""
    own = scores.gather(1, true[:, None])
    return (~(scores < own)).sum(1) - 1


def matched(found: Tensor, true: Tensor) -> Tensor:
    """The order in which each victim's reconstructions fit its records best, (N, batch): an update has no order.

    Row r is such that found[r, order[r, b]] belongs to true[r, b]. By the Hungarian method on squared errors.
    """
    apart = torch.cdist(_shown(found).flatten(2).double(), true.flatten(2).double())  # (N, batch, batch)
    order = [torch.as_tensor(linear_sum_assignment(part.T.numpy())[1]) for part in apart]
    return torch.stack(order)


def _shown(found: Tensor) -> Tensor:
    return found.nan_to_num(0.5).clamp(0, 1)
