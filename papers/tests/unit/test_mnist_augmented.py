"""More images from the ones there are: the same every time, each still the digit that it was."""

import pytest
import torch

from privet.data import task
from privet.errors import InvalidValue
from privet_papers.datasets import mnist as enlarged
from privet_papers.datasets.mnist import distort, enlarge


def source():
    return torch.Generator().manual_seed(3)


def test_known_images_come_first_and_the_rest_follow_from_them():
    small = task("digits:size=50")
    made = enlarge(small, 130)
    images, labels = made.train
    assert made.size == 130
    assert torch.equal(images[:50], small.train[0])
    assert labels.tolist() == (small.train[1].tolist() * 3)[:130]
    assert float(images.min()) >= 0
    assert float(images.max()) <= 1
    assert torch.equal(enlarge(small, 130).train[0], images)
    assert made.held_out is small.held_out
    assert "130 in all, by affine distortions" in made.source
    for said in (made.source, made.evaluation):  # in the report, and at the end of the command
        assert "protected it is one of the enlarged images, not the image that several come from" in said
    again = images[50:100]
    moved = (again - small.train[0]).flatten(1).norm(dim=1)
    assert float(moved.min()) > 0.5  # none is the same
    gram = torch.nn.functional.cosine_similarity(again.flatten(1)[:, None], small.train[0].flatten(1), dim=2)
    assert (
        float((gram.argmax(1) == torch.arange(50)).float().mean()) > 0.3
    )  # by chance 0.02 would be nearest to their own


def test_without_a_range_nothing_changes(monkeypatch):
    for name in ("TURN", "STRETCH", "SLANT", "MOVE"):
        monkeypatch.setattr(enlarged, name, 0.0)
    images = torch.rand(4, 1, 28, 28, generator=source())
    torch.testing.assert_close(distort(images, source()), images, atol=1e-5, rtol=0)


def test_a_move_moves_by_at_most_so_many_pixels(monkeypatch):
    for name in ("TURN", "STRETCH", "SLANT"):
        monkeypatch.setattr(enlarged, name, 0.0)
    images = torch.zeros(200, 1, 28, 28)
    images[:, :, 14, 14] = 1.0
    made = distort(images, source())[:, 0]
    rows, columns = (made.sum(k) @ torch.arange(28.0) for k in (2, 1))  # the centre of the one bright pixel
    torch.testing.assert_close(made.sum((1, 2)), torch.ones(200))
    assert 1.5 < float((rows - 14).abs().max()) <= 2.001
    assert 1.5 < float((columns - 14).abs().max()) <= 2.001


def test_fewer_than_there_are_is_refused():
    with pytest.raises(InvalidValue, match="enlarged=3"):
        enlarge(task("digits:size=50"), 3)
