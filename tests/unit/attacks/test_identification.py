"""Identification from a whole run: certain without noise, below its ceiling with it, the likelihood by its formula."""

import math

import pytest
import torch
from torch import Tensor, nn

from privet import plan
from privet.accounting import Step
from privet.accounting.tradeoff import tradeoff
from privet.attacks import contract as attack_scenes, identification, observing
from privet.attacks.identification import run_ceiling
from privet.attacks.observing import choose_targets
from privet.attacks.outcome import measure_reconstruction, rate_interval
from privet.clipping.rule import clipping_rule
from privet.data.task import Task
from privet.errors import Unsupported
from privet.planning import Plan
from privet.training.settings import Settings

X, Y = attack_scenes.records(60)
TASK = Task(
    name="made-up", train=(X, Y), held_out=(X, Y), evaluation="made up", model=attack_scenes.network,
    facts={"shape": attack_scenes.SHAPE, "classes": attack_scenes.CLASSES},
)  # fmt: skip


def planned(*, noise: float, rate: float = 1.0, **more: object) -> Plan:
    return plan(
        delta=1e-5,
        dataset_size=60,
        sample_rate=rate,
        steps=3,
        noise_multiplier=noise,
        clipping_norm=0.5,
        solve="epsilon",
        **more,
    )


def identified(made: Plan) -> tuple[int, int]:
    victims = choose_targets(TASK, examples=40, candidates=60)
    both = identification.identify_from_run(made, TASK, victims, settings=Settings(device="cpu"), seed=0)
    found, control = (measure_reconstruction(half, victims).top1 for half in both)
    return found, control


@pytest.mark.parametrize("rule", ["flat", "adaclip", "quantile"])
def test_without_noise_everyone_is_found_and_noise_alone_finds_nobody(rule: str) -> None:
    found, control = identified(planned(noise=1e-3, rule=rule))
    assert found == 40
    assert control <= 6  # by chance 0.7; more than 6 once in 100,000


@pytest.mark.parametrize(("noise", "rate"), [(2.0, 1.0), (0.7, 0.3)])
def test_with_noise_no_more_than_the_ceiling(noise: float, rate: float) -> None:
    made = planned(noise=noise, rate=rate)
    ceiling = run_ceiling(60, tradeoff(made.ledger()))
    found, _ = identified(made)
    assert rate_interval(found, 40, 0.998)[0] <= ceiling < 1


def test_a_step_s_likelihood_is_the_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    """log(1 - q + q N(u; c_k) / N(u; 0)), from densities."""
    victims = choose_targets(TASK, examples=2, candidates=5)
    model, step = attack_scenes.network(), Step(noise_multiplier=0.8, clipping_norm=0.5, sample_rate=0.3)
    seen = identification._public_observation(model, clipping_rule("flat"), step, victims)
    own: list[Tensor] = []
    real = identification.log_likelihood_ratio

    def watched(update: Tensor, flat: Tensor) -> Tensor:
        own.extend([update, flat])
        return real(update, flat)

    monkeypatch.setattr(identification, "log_likelihood_ratio", watched)
    source = torch.Generator().manual_seed(0)
    found = identification._step_log_likelihoods(seen, step, victims, source, adjacency="zero-out")
    update, flat = own
    for n in range(4):
        for k in range(5):
            apart = [float((update[n] - c).square().sum()) for c in (flat[k], torch.zeros_like(flat[k]))]
            ratio = math.exp((apart[1] - apart[0]) / (2 * 0.4**2))
            assert float(found[n, k]) == pytest.approx(math.log(0.7 + 0.3 * ratio), rel=1e-6, abs=1e-6)
    assert flat.norm(dim=1).max() <= 0.5 * (1 + 1e-6)


def test_what_has_no_public_noise_is_refused() -> None:
    made = planned(noise=1.0, method="dyn-s-sigma", uncertified=True)
    with pytest.raises(Unsupported, match="sound rule"):
        identified(made)


def test_the_loop_s_own_model_is_trained_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking must not change what is trained: the weights of both loops agree."""
    kept: list[nn.Module] = []
    real = observing.simulate_training

    def watched(*args: object, **more: object) -> object:
        kept.append((made := real(*args, **more)).model)  # type: ignore[arg-type]
        return made

    monkeypatch.setattr(identification, "simulate_training", watched)
    identified(planned(noise=1.0))
    plainly = real(planned(noise=1.0), TASK, settings=Settings(device="cpu"), seed=0)
    for x, y in plainly:
        plainly.step(TASK.losses, x, y)
    for mine, other in zip(kept[0].parameters(), plainly.model.parameters(), strict=True):
        assert torch.equal(mine, other)


def test_a_batch_in_pieces_is_one_release(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixty records in pieces of seven are nine batches of a loop, and still one look at each of three steps."""
    looks, likelihoods = [], identification._step_log_likelihoods

    def counted(seen: object, step: Step, *given: object, **more: object) -> Tensor:
        looks.append(step)
        return likelihoods(seen, step, *given, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(identification, "_step_log_likelihoods", counted)
    victims, settings = (
        choose_targets(TASK, examples=5, candidates=60),
        Settings(device="cpu", max_physical_batch_size=7),
    )
    identification.identify_from_run(planned(noise=2.0), TASK, victims, settings=settings, seed=0)
    assert len(looks) == 3
