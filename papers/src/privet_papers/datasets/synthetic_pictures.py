"""Made-up grey pictures, of pen strokes and of shapes: by a fixed seed, from no data at all.

They are what a picture of one thing on an empty ground may look like. `whitened` learns from them in which directions
features spread, which would cost privacy to learn from private pictures.
"""

import math

import torch
from torch import Tensor

from privet import _check

VERSION = "strokes and shapes 1"  # changes with whatever changes a picture
STROKES = 3  # of a picture at most
SHAPES = 4
POINTS = 24  # that draw a stroke: a long one is dotted
_EDGE = 3.0  # how fast the ink ends: from 95 % to 5 % in two pixels
_PART = 250  # pictures at a time: the distances to all points of their strokes are held at once


def draw_pictures(count: int, *, side: int, seed: int = 0) -> Tensor:
    """(count, 1, side, side), from 0 to 1: the first half strokes, the second half shapes.

    >>> draw_pictures(4, side=28).shape
    torch.Size([4, 1, 28, 28])
    """
    _check.whole(least=2, count=count)
    _check.whole(least=4, side=side)
    draw = torch.Generator().manual_seed(seed)
    parts = [draw_strokes(min(_PART, count // 2 - done), side, draw) for done in range(0, count // 2, _PART)]
    return torch.cat([*parts, draw_shapes(count - count // 2, side, draw)])[:, None]


def draw_strokes(count: int, side: int, draw: torch.Generator) -> Tensor:
    """(count, side, side): one to three cubic curves; most begin where the one before ends."""
    corners = (0.1 + 0.8 * torch.rand(count, STROKES, 4, 2, generator=draw)) * side
    joined = torch.rand(count, STROKES, 1, generator=draw) < 0.6
    for k in range(1, STROKES):
        corners[:, k, 0] = torch.where(joined[:, k], corners[:, k - 1, 3], corners[:, k, 0])
    used = torch.randint(1, STROKES + 1, (count, 1, 1, 1), generator=draw) > torch.arange(STROKES)[:, None, None]
    u = torch.linspace(0, 1, POINTS)[:, None]
    weights = torch.cat([(1 - u) ** 3, 3 * u * (1 - u) ** 2, 3 * u**2 * (1 - u), u**3], 1)  # Bernstein's polynomials
    points = (weights @ corners).masked_fill(~used, -4.0 * side).flatten(1, 2)  # those that are not used: far away
    from_centres = (points[..., None] - (torch.arange(side) + 0.5)).square()  # (N, points, 2, side)
    nearest = (from_centres[:, :, 1, :, None] + from_centres[:, :, 0, None, :]).amin(1).sqrt()
    pen = (0.8 + 0.7 * torch.rand(count, 1, 1, generator=draw)) * side / 28
    return torch.sigmoid(_EDGE * (pen - nearest))


def draw_shapes(count: int, side: int, draw: torch.Generator) -> Tensor:
    """(count, side, side): one to four ellipses and boxes over each other, half of them mirrored, with grain."""

    def between(low: float, high: float, *more: int) -> Tensor:
        return low + (high - low) * torch.rand(count, *more, 1, 1, generator=draw)

    grid = (torch.arange(side) + 0.5) / side * 2 - 1
    across, down = grid - between(-0.6, 0.6, SHAPES), grid[:, None] - between(-0.7, 0.7, SHAPES)  # (N, shapes, ...)
    width, height = between(0.12, 0.72, SHAPES), between(0.12, 0.92, SHAPES)
    turn, tone = between(-0.5, 0.5, SHAPES), between(0.3, 1, SHAPES)
    power = torch.where(between(0, 1, SHAPES) < 0.5, 2.0, 8.0)  # an ellipse, or nearly a box
    along = (across * turn.cos() + down * turn.sin()) / width
    aside = (down * turn.cos() - across * turn.sin()) / height
    radius = (along.abs() ** power + aside.abs() ** power) ** (1 / power)
    inside = torch.sigmoid((1 - radius) * torch.minimum(width, height) * side)
    inside *= between(1, SHAPES + 1)[:, None].floor() > torch.arange(SHAPES)[:, None, None]
    found = torch.zeros(count, side, side)
    for k in range(SHAPES):
        found = found.lerp(tone[:, k], inside[:, k])
    found = torch.where(between(0, 1) < 0.5, torch.maximum(found, found.flip(2)), found)
    return (found + between(0, 0.2) * _draw_grain(count, side, draw) * (found > 0.15)).clamp(0, 1)


def _draw_grain(count: int, side: int, draw: torch.Generator) -> Tensor:
    """(count, side, side): noise whose spectrum falls as one over the frequency, of variance 1."""
    there = torch.fft.fftfreq(side)
    frequency = (there[:, None].square() + there.square()).sqrt().clamp(min=1 / side)
    spectrum = torch.fft.fft2(torch.randn(count, side, side, generator=draw)) / frequency
    found: Tensor = torch.fft.ifft2(spectrum).real
    return found / found.square().mean((1, 2), keepdim=True).sqrt().clamp(min=math.ulp(1.0))
