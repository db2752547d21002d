"""Made-up pictures come from no data; the map made of them against the slow way; what one row becomes is its own."""

from dataclasses import replace

import pytest
import torch

from privet.data.files import DataFolders
from privet.data.task import task
from privet.errors import InvalidValue, Unsupported
from privet_papers.datasets import features
from privet_papers.datasets.features import FLOOR, whiten, whitening_map
from privet_papers.datasets.synthetic_pictures import draw_pictures


def rows(count=40, columns=12):
    draw = torch.Generator().manual_seed(3)
    return torch.randn(count, columns, generator=draw) @ torch.randn(columns, columns, generator=draw) + 5


def test_pictures_are_those_of_their_seed():
    first = draw_pictures(20, side=16)
    assert torch.equal(first, draw_pictures(20, side=16))
    assert not torch.equal(first, draw_pictures(20, side=16, seed=1))
    assert first.shape == (20, 1, 16, 16)
    assert 0 <= first.min() < 0.1
    assert 0.9 < first.max() <= 1
    assert (first.flatten(1).std(1) > 0).sum() > 15  # something is on most of them


def test_the_map_against_eigenvectors_of_the_covariance():
    public, power, kept = rows(), 0.3, 5
    matrix = whitening_map(public, directions=kept, power=power)
    wide = public.double()
    covariance = torch.cov(wide.T, correction=0)
    variances, sides = (part.flip(-1) for part in torch.linalg.eigh(covariance))
    scale = (variances / variances[0] + FLOOR) ** -power
    slow = ((wide - wide.mean(0)) @ sides * scale)[:, :kept]
    fast = public @ matrix[:-1] + matrix[-1]
    assert torch.allclose(fast.abs().double(), slow.abs(), rtol=1e-3, atol=1e-3)  # an eigenvector has no sign
    assert fast.mean(0).abs().max() < 1e-4


def test_a_row_becomes_the_same_whatever_is_beside_it_and_has_one_size():
    matrix = whitening_map(rows(), directions=5)
    found = whiten(rows(), matrix)
    assert torch.equal(whiten(rows()[7:8], matrix), found[7:8])
    assert torch.allclose(found.square().mean(1), torch.ones(40), atol=1e-4)


def test_whitened_features_of_a_task_are_made_once_and_are_grey(tmp_path, monkeypatch):
    monkeypatch.setattr(features, "PICTURES", 8)
    where, digits = DataFolders(folder=tmp_path), task("digits:size=10")
    small = replace(digits, held_out=tuple(part[:5] for part in digits.held_out))
    found = features.image_features(small, "whitened", where, directions=4)
    assert (found.train[0].shape, found.facts["shape"], found.model) == ((10, 4), (4,), "linear")
    monkeypatch.setattr(features, "draw_pictures", lambda *_, **__: pytest.fail("the map was kept"))
    assert torch.equal(features.image_features(small, "whitened", where, directions=4).train[0], found.train[0])
    with pytest.raises(InvalidValue, match="directions=4 is for features='whitened'"):
        features.image_features(small, "scattering", where, directions=4)
    with pytest.raises(InvalidValue, match="directions=8 must lie"):
        features.image_features(small, "whitened", where, directions=8)
    colour = replace(small, facts={**small.facts, "shape": (3, 28, 28)})
    with pytest.raises(Unsupported, match="not for 3 colours"):
        features.image_features(colour, "whitened", where)
