"""Save and resume: weights from the checkpoint, spending from the ledger, nothing done twice and nothing lost."""

from pathlib import Path

import pytest
import torch
from torch import nn

from privet import Training, plan
from privet.errors import InvalidValue
from privet.ledger.reading import NAME, read_ledger
from privet.training import checkpoint, checkpoint_format
from privet.training.resume import resume, save

LOSS = nn.CrossEntropyLoss(reduction="none")
X = torch.randn(40, 5, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()


def planned(steps: int = 12, **more):
    """Full batches and next to no noise, so that two runs can be compared."""
    return plan(delta=1e-3, dataset_size=40, batch_size=40, steps=steps, noise_multiplier=1e-7, solve="epsilon", **more)


def parts(rate: float = 0.3):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.5)


def trained(training: Training, scheduler, count: int | None = None) -> None:
    for done, (x, y) in enumerate(training, start=1):
        training.step(LOSS(training.model(x), y))
        scheduler.step()
        if done == count:
            break


def same(one: nn.Module, other: nn.Module, tolerance: float = 1e-4) -> bool:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.allclose(a, b, atol=tolerance) for a, b in pairs)


def stopped(folder: Path, p, *, after: int, unsaved: int = 0, **options) -> nn.Module:
    """A run that saved after some steps, made some more, and died; the model as it was saved."""
    model, optimizer, scheduler = parts()
    with Training(model, optimizer, (X, Y), p, out=folder, **options) as training:
        trained(training, scheduler, after)
        save(training, scheduler=scheduler, extra={"loss": 0.5})
        kept, _, _ = parts()
        kept.load_state_dict(model.state_dict())
        if unsaved:
            trained(training, scheduler, unsaved)
    return kept


def test_a_run_that_was_stopped_ends_like_one_that_was_not(tmp_path):
    p = planned()
    whole, optimizer, scheduler = parts()
    trained(Training(whole, optimizer, (X, Y), p), scheduler)
    stopped(tmp_path / "a", p, after=5)
    model, optimizer, scheduler = parts(rate=9.0)  # everything comes from the checkpoint
    with resume(model, optimizer, (X, Y), p, out=tmp_path / "a", scheduler=scheduler) as training:
        assert training.steps_done == 5
        trained(training, scheduler)
        assert training.steps_done == 12
        assert training.spent().epsilon == p.guarantee.epsilon
    assert same(model, whole)


def test_lost_steps_stay_charged_and_are_not_done_again(tmp_path):
    p = planned()
    kept = stopped(tmp_path / "a", p, after=4, unsaved=3)
    model, optimizer, scheduler = parts()
    with resume(model, optimizer, (X, Y), p, out=tmp_path / "a", scheduler=scheduler) as training:
        assert training.steps_done == 7
        assert same(model, kept, tolerance=0.0)
        trained(training, scheduler)
    assert read_ledger(tmp_path / "a").ledger.steps == 12
    assert checkpoint.peek(tmp_path / "a").extra["more"] == {"loss": 0.5}


def test_without_a_checkpoint_what_is_charged_is_charged(tmp_path):
    p = planned()
    model, optimizer, scheduler = parts()
    with Training(model, optimizer, (X, Y), p, out=tmp_path / "a") as training:
        trained(training, scheduler, 3)
    model, optimizer, scheduler = parts()
    with resume(model, optimizer, (X, Y), p, out=tmp_path / "a") as training:
        assert training.steps_done == 3


def test_what_is_learnt_on_the_way_comes_back(tmp_path):
    p = plan(
        delta=1e-3, dataset_size=40, batch_size=40, steps=8, noise_multiplier=0.5, solve="epsilon", rule="quantile"
    )
    model, optimizer, scheduler = parts()
    with Training(model, optimizer, (X, Y), p, out=tmp_path / "a", ema_decay=0.9) as training:
        trained(training, scheduler, 4)
        save(training, scheduler=scheduler)
        assert training.rule.current_clip(1.0) != 1.0
        learnt, mean, steps = training.rule.state_dict(), training.average.mean, training.average.steps
    model, optimizer, scheduler = parts()
    with resume(model, optimizer, (X, Y), p, out=tmp_path / "a", scheduler=scheduler, ema_decay=0.9) as again:
        assert again.rule.state_dict() == learnt
        assert again.average.steps == steps
        assert all(torch.equal(again.average.mean[name], mean[name]) for name in mean)


def cut_ledger(folder: Path) -> None:
    lines = (folder / NAME).read_bytes().splitlines(keepends=True)
    (folder / NAME).write_bytes(b"".join(lines[:3]))


def flip_checkpoint(folder: Path) -> None:
    raw = bytearray((folder / checkpoint_format.NAME).read_bytes())
    raw[len(raw) // 2] ^= 1
    (folder / checkpoint_format.NAME).write_bytes(raw)


@pytest.mark.parametrize("damage", [cut_ledger, flip_checkpoint])
def test_damage_is_refused_and_the_weights_stay(tmp_path, damage):
    p = planned()
    stopped(tmp_path / "a", p, after=5)
    damage(tmp_path / "a")
    model, optimizer, scheduler = parts()
    before, _, _ = parts()
    with pytest.raises(InvalidValue, match="a/"):
        resume(model, optimizer, (X, Y), p, out=tmp_path / "a", scheduler=scheduler)
    assert same(model, before, tolerance=0.0)


def test_another_plan_model_or_average_is_refused_and_the_ledger_is_free_again(tmp_path):
    p = planned()
    stopped(tmp_path / "a", p, after=5)
    model, optimizer, scheduler = parts()
    with pytest.raises(InvalidValue, match="another plan"):
        resume(model, optimizer, (X, Y), planned(13), out=tmp_path / "a", scheduler=scheduler)
    with pytest.raises(InvalidValue, match="average"):
        resume(model, optimizer, (X, Y), p, out=tmp_path / "a", scheduler=scheduler, ema_decay=0.5)
    other = nn.Linear(5, 2)
    with pytest.raises(InvalidValue, match="checkpoint"):
        resume(other, torch.optim.Adam(other.parameters()), (X, Y), p, out=tmp_path / "a", scheduler=scheduler)
    resume(model, optimizer, (X, Y), p, out=tmp_path / "a", scheduler=scheduler).close()


def test_saving_needs_a_folder_and_a_quiet_moment(tmp_path):
    model, optimizer, _ = parts()
    with pytest.raises(InvalidValue, match="out=None keeps nothing"):
        save(Training(model, optimizer, (X, Y), planned()))
    with Training(model, optimizer, (X, Y), planned(), out=tmp_path / "a") as training:
        for _ in training:
            with pytest.raises(InvalidValue, match="between two steps"):
                save(training)
            break
