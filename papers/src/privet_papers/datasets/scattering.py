"""The scattering transform of images: fixed wavelets and moduli, nothing of it learned, so that it costs no privacy.

A linear model on these features does at a small budget what a network has to learn under noise (Tramer and Boneh 2021,
arXiv:2011.11660v3). Wavelets are those of Bruna and Mallat 2013 (arXiv:1203.1513v2).
`features` keeps what it gives on disk.
"""

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from privet import _check
from privet.errors import InvalidValue

VERSION = "scattering 1"  # changes with whatever changes the result
ROWS = 16  # images at a time: what lies between fits the processor's cache
SLANT = 0.5  # a wavelet is twice as long across its oscillation as along it, for 8 directions
PEAK = 0.75 * math.pi  # the frequency of the finest wavelet
WIDTH = 0.8  # the standard deviation of its envelope, in pixels
GROUP = 3  # channels that are brought to mean 0 and variance 1 together


@dataclass(frozen=True, slots=True, kw_only=True)
class Scattering:
    """Paths of at most two wavelets over images of one side: (N, C, side, side) to (N, C K, side / 2^J, side / 2^J).

        S0 = x * phi,   S1 = |x * psi_a| * phi,   S2 = ||x * psi_a| * psi_b| * phi,   scale of b above that of a

    With J scales and L directions K = 1 + J L + L^2 J (J - 1) / 2: 81 for J = 2, L = 8. Each image is mirrored at its
    borders by 2^J pixels. Of images of one side all calls give the same, whatever else is in the batch.

    What is kept lies at the first pixel of each 2^J, or, `centred`, in their middle.

    >>> Scattering(side=28)(torch.rand(2, 1, 28, 28)).shape
    torch.Size([2, 81, 7, 7])
    """

    side: int
    scales: int = 2
    directions: int = 8
    centred: bool = False

    def __post_init__(self) -> None:
        _check.whole(side=self.side, scales=self.scales, directions=self.directions)
        if self.side % 2**self.scales or self.side < 2 ** (self.scales + 1):
            raise InvalidValue(
                f"side={self.side} must be a multiple of {2**self.scales}, and at least {2 ** (self.scales + 1)}. Each "
                f"of scales={self.scales} halves it. Use fewer scales."
            )

    @property
    def channels(self) -> int:
        """K, the channels that one of an image's becomes."""
        j, directions = self.scales, self.directions
        return 1 + j * directions + directions**2 * j * (j - 1) // 2

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        count, colours = images.shape[:2]
        flat = images.reshape(count * colours, self.side, self.side)
        found = [self._scatter_images(part) for part in torch.split(flat, ROWS)]
        small = self.side // 2**self.scales
        return torch.cat(found).reshape(count, colours * self.channels, small, small)

    def _scatter_images(self, images: Tensor) -> Tensor:
        border = 2**self.scales
        padded = torch.nn.functional.pad(images[:, None], (border,) * 4, mode="reflect")[:, 0]
        bank = _wavelet_bank(self.side + 2 * border, self.scales, self.directions)
        first, second = [self._low_pass(padded[:, None], 0)], []
        spectrum = torch.fft.fft2(padded)
        for a in range(self.scales):
            kept = _wavelet_moduli(spectrum, bank[a][0])  # (N, L, P / 2^a, P / 2^a)
            first.append(self._low_pass(kept, a))
            again = torch.fft.fft2(kept) if a + 1 < self.scales else spectrum
            for b in range(a + 1, self.scales):
                second.append(self._low_pass(_wavelet_moduli(again, bank[b][a]).flatten(1, 2), b))
        return torch.cat(first + second, 1)

    def _low_pass(self, images: Tensor, halved: int) -> Tensor:
        """x * phi at every 2^J-th pixel, the mirrored border left out; `images` are sampled at every 2^halved-th."""
        rows = _blur_matrix(self.side, self.scales, halved, (2**self.scales - 1) / 2 if self.centred else 0.0)
        return rows @ images @ rows.mT


def _wavelet_moduli(spectra: Tensor, filters: Tensor) -> Tensor:
    """|x * psi| at every f-th pixel, from the spectra of x (..., P, P), for each filter: (..., L, P / f, P / f).

    Where pixels are left out, f^2 parts of a spectrum fall on each other and are added up. Spectra are complex and
    filters real: they are multiplied as pairs of real numbers, a part at a time, which halves the work.
    """
    f, small = math.isqrt(len(filters)), filters.shape[-2]
    pairs = torch.view_as_real(spectra).reshape(*spectra.shape[:-2], f, small, f, small, 2)
    parts = pairs.movedim((-5, -3), (0, 1)).flatten(0, 1).contiguous().unsqueeze(-4)  # (f^2, ..., 1, P / f, P / f, 2)
    total = parts[0] * filters[0]
    for part, own in zip(parts[1:], filters[1:], strict=True):
        total.addcmul_(part, own)
    found = torch.fft.ifft2(torch.view_as_complex(total))
    moduli: Tensor = found.real.square().addcmul_(found.imag, found.imag).sqrt_()  # three times as fast as abs()
    return moduli


# --- filters ----------------------------------------------------------------------------------------


@functools.cache
def _wavelet_bank(side: int, scales: int, directions: int) -> list[list[Tensor]]:
    """The wavelets by scale j, then by how often h the pixels were halved before: as `_moduli` multiplies them."""
    return [[_filter_parts(side // 2**h, j - h, directions) for h in range(j + 1)] for j in range(scales)]


def _filter_parts(side: int, scale: int, directions: int) -> Tensor:
    """(f^2, L, side / f, side / f, 2), f = 2^scale: spectra cut into the parts that fall on each other, over f^2."""
    f = 2**scale
    filters = torch.stack([wavelet(side, scale, math.pi * k / directions) for k in range(directions)])
    cut = filters.reshape(directions, f, side // f, f, side // f) / f**2
    twice: Tensor = cut.permute(1, 3, 0, 2, 4).flatten(0, 1).unsqueeze(-1).expand(*[-1] * 4, 2)
    return twice.contiguous()


def wavelet(side: int, scale: int, angle: float) -> Tensor:
    """The spectrum of a Morlet wavelet on a grid: a Gaussian bump at PEAK / 2^scale, less one at 0 for a sum of 0.

        G(w) = exp(-(s^2 / 2) (w_along^2 + w_across^2 / SLANT^2)),   s = WIDTH 2^scale
        psi(w) = G(w - peak) - G(w) G(-peak) / G(0),   each G summed over the aliases of the grid

    It is real, since the wavelet's own real part is even and its imaginary part is odd.
    """
    grid = 2 * math.pi * torch.fft.fftfreq(side, dtype=torch.float64)
    peak, spread = PEAK / 2**scale, WIDTH * 2**scale

    def bump(centre: float) -> Tensor:
        total = torch.zeros(side, side, dtype=torch.float64)
        for i in (-1, 0, 1):
            for k in (-1, 0, 1):
                y, x = torch.meshgrid(grid + 2 * math.pi * i, grid + 2 * math.pi * k, indexing="ij")
                along = x * math.cos(angle) + y * math.sin(angle) - centre
                across = y * math.cos(angle) - x * math.sin(angle)
                total += torch.exp(-(spread**2) / 2 * (along**2 + (across / SLANT) ** 2))
        return total

    here, at_zero = bump(peak), bump(0.0)
    return (here - at_zero * (here[0, 0] / at_zero[0, 0])).float()


@functools.cache
def _blur_matrix(side: int, scales: int, halved: int, shift: float) -> Tensor:
    """(side / 2^J, padded side / 2^halved): each row a Gaussian around a place that is kept; its sum is 1."""
    spread, border = WIDTH * 2 ** (scales - 1), 2**scales
    there = torch.arange(0, side + 2 * border, 2**halved, dtype=torch.float64)
    kept = border + shift + torch.arange(0, side, 2**scales, dtype=torch.float64)
    weights = torch.exp(-((kept[:, None] - there) ** 2) / (2 * spread**2))
    return (weights / weights.sum(1, keepdim=True)).float()


def normalise_channels(features: Tensor, *, group: int = GROUP, floor: float = 1e-5) -> Tensor:
    """Each example's channels, `group` at a time, with mean 0 and variance 1 over channels and places.

    It looks at one example alone, so nobody's features depend on another's. `floor` is added to each variance: what is
    nearly flat stays small.
    """
    groups = features.shape[1] // group if features.shape[1] % group == 0 else 1
    return torch.nn.functional.group_norm(features, groups, eps=floor)
