"""Images made into more images: each a known one, turned, stretched, slanted and moved a little, by a fixed rule."""

import math
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from privet import _check
from privet.data.task import Task

TURN, STRETCH, SLANT, MOVE = math.radians(12), 0.1, 0.15, 2.0  # at most; radians, shares, shares, pixels
AT_ONCE = 5000


def enlarge(task: Task, size: int) -> Task:
    """The task with `size` images to train on: those it has, in their order, again and again, each time distorted.

    The first of each is as it was. All else is drawn from a fixed seed, so the same call gives the same images.

    >>> x, y = torch.rand(3, 1, 8, 8), torch.tensor([0, 1, 2])
    >>> small = Task(name="small", train=(x, y), held_out=(x, y), evaluation="made up", model="linear")
    >>> more = enlarge(small, 7)
    >>> more.size, more.train[1].tolist(), bool((more.train[0][:3] == x).all())
    (7, [0, 1, 2, 0, 1, 2, 0], True)
    """
    _check.whole(least=task.size, enlarged=size)
    images, labels = task.train
    source = torch.arange(size) % task.size
    made = torch.empty(size, *images.shape[1:])
    made[: task.size] = images
    generator = torch.Generator().manual_seed(0)
    for rows in torch.split(torch.arange(task.size, size), AT_ONCE):
        made[rows] = distorted(images[source[rows]], generator)
    note = "; where a record is protected it is one of the enlarged images, not the image that several come from"
    return replace(
        task, train=(made, labels[source]), users=None, evaluation=task.evaluation + note,
        source=f"{task.source}; {size:,} in all, by affine distortions of those{note}",
    )  # fmt: skip


def distorted(images: Tensor, generator: torch.Generator) -> Tensor:
    """Each image (N, C, H, W) under an affine map of its own, drawn evenly from the ranges above; 0 outside."""
    draws = 2 * torch.rand(6, len(images), generator=generator) - 1
    turn, slant = TURN * draws[0], SLANT * draws[1]
    wide, high = 1 + STRETCH * draws[2], 1 + STRETCH * draws[3]
    right, down = (2 * MOVE * draws[4 + k] / side for k, side in enumerate((images.shape[-1], images.shape[-2])))
    across = torch.stack([wide * turn.cos(), wide * (slant * turn.cos() - turn.sin()), right], dim=1)
    along = torch.stack([high * turn.sin(), high * (slant * turn.sin() + turn.cos()), down], dim=1)
    places = F.affine_grid(torch.stack([across, along], dim=1), list(images.shape), align_corners=False)
    return F.grid_sample(images, places, align_corners=False)
