"""One-run audits on the real loop, and the entry `audit`."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from privet import audit, plan, train
from privet.accounting import Step
from privet.accounting.tradeoff import Gaussian, tradeoff
from privet.auditing import mechanism_claim, neighbouring_pairs
from privet.auditing.audit import audit_ledger, method_plan, plan_mechanisms
from privet.auditing.broken_mechanisms import Control, add_gaussian_noise, clip_rows, control_names, describe_fault
from privet.auditing.finding import Audit, Finding
from privet.auditing.one_run import one_run
from privet.data.task import Task
from privet.errors import InvalidValue, Unsupported
from privet.noise.randomness import seeded

pytestmark = pytest.mark.usefixtures("few_checks")

RUN = {"delta": 1e-5, "dataset_size": 600, "steps": 10, "solve": "epsilon"}


@pytest.mark.slow
def test_a_sound_run_passes_and_a_quarter_of_the_noise_does_not():
    honest, cheat = plan(**RUN, batch_size=600, noise_multiplier=4.0), plan(**RUN, batch_size=600, noise_multiplier=1.0)
    found = one_run(honest, canaries=600, randomness=seeded(1))
    assert found.verdict == "consistent", found
    assert found.empirical.label == "empirical"
    assert found.empirical.epsilon < honest.guarantee.epsilon
    caught = one_run(cheat, canaries=600, randomness=seeded(1), claim=tradeoff(honest.ledger()))
    assert caught.verdict == "violation", caught
    assert caught.numbers["p_value"] <= 1e-3
    assert caught.empirical.epsilon > found.empirical.epsilon


@pytest.mark.slow
def test_sampled_runs_are_guessed_too():
    """At rate 0.1 the coins are still guessed far better than by chance, by what the releases say."""
    found = one_run(
        plan(**RUN | {"steps": 20}, batch_size=60, noise_multiplier=0.5), canaries=600, randomness=seeded(2)
    )
    assert found.verdict != "violation"
    assert found.numbers["advantage"] > 0.5


def test_few_canaries_do_not_decide_and_say_how_many_would():
    found = one_run(plan(**RUN | {"steps": 2}, batch_size=600, noise_multiplier=2.0), canaries=30, randomness=seeded(3))
    assert found.verdict == "inconclusive"
    assert found.samples_needed > 30
    assert str(found.samples_needed) in found.says


def toy() -> Task:
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(600, 1200, generator=g), torch.randint(3, (600,), generator=g)
    return Task(name="toy", train=(x, y), held_out=(x[:9], y[:9]), evaluation="none", model=lambda: nn.Linear(1200, 3))


@pytest.mark.slow
def test_mislabelled_examples_can_be_the_canaries():
    few = plan(**RUN, batch_size=600, noise_multiplier=0.02)
    found = one_run(few, canaries=200, kind="examples", task=toy(), randomness=seeded(1))
    assert found.numbers["where"] == "examples"
    assert found.numbers["advantage"] > 0.5  # hardly any noise: losses tell
    claimed = one_run(few, canaries=200, kind="examples", task=toy(), randomness=seeded(1), claim=Gaussian(mu=0.3))
    assert claimed.verdict == "violation"


def test_what_one_run_cannot_do_is_refused():
    planned = plan(**RUN, batch_size=600, noise_multiplier=2.0)
    with pytest.raises(InvalidValue, match="at most the plan's dataset_size"):
        one_run(planned, canaries=601)
    with pytest.raises(InvalidValue, match="Give a task"):
        one_run(planned, canaries=60, kind="examples")
    with pytest.raises(Unsupported, match="learns from releases"):
        one_run(plan(**RUN, batch_size=600, noise_multiplier=2.0, rule="quantile"), canaries=60)
    with pytest.raises(Unsupported, match="add-remove"):
        one_run(plan(**RUN, batch_size=600, noise_multiplier=2.0, adjacency="add-remove"), canaries=60)
    with pytest.raises(InvalidValue, match="kind"):
        one_run(planned, canaries=60, kind="blocks")


def test_a_run_is_held_against_its_plan(tmp_path):
    planned = plan(delta=1e-5, dataset_size=600, batch_size=60, steps=3, noise_multiplier=2.0, solve="epsilon")
    own = train(planned, toy(), out=tmp_path / "a")
    found = audit(own, kinds=["replay"], scenes=neighbouring_pairs()[:1])
    assert found.finding("ledger").verdict == "consistent"
    assert found.finding("ledger").numbers["steps"] == 3
    assert found.verdict == "consistent"
    other = plan(delta=1e-5, dataset_size=600, batch_size=60, steps=3, noise_multiplier=3.0, solve="epsilon")
    assert audit_ledger(replace(own, plan=other)).reasons == (
        "a charged step has another noise, rate or sampling than the plan's",
    )
    assert audit_ledger(replace(own, seed=7)).verdict == "inconclusive"


# --- the entry -----------------------------------------------------------------------------------------


def test_a_mechanism_of_your_own():
    class Mine:
        claim = mechanism_claim(Step(noise_multiplier=1.0), l2_bound=1.0, divisor=12)

        def __call__(self, records, randomness):
            x = torch.nan_to_num(records[0]) * (records[1] != 0)[:, None]
            total = nn.functional.normalize(x, dim=1).sum(0)
            return {"sum": (total + torch.randn(len(total), generator=randomness.torch_generator())) / 12}

    found = audit(Mine(), samples=1000, randomness=seeded(1))
    assert [one.kind for one in found.findings] == ["replay", "step"]
    assert found.verdict == "consistent", found
    assert found.as_dict()["findings"][1]["empirical"]["label"] == "empirical"


def test_a_plan_is_audited_at_both_ends_and_sampled():
    planned = plan(delta=1e-5, dataset_size=100, batch_size=10, steps=5, noise_multiplier=2.0, solve="epsilon")
    assert list(plan_mechanisms(planned)) == ["", "sampled at rate 1/2: "]
    falling = method_plan("growing-mu")
    assert list(plan_mechanisms(falling)) == ["first step: ", "last step: "]
    assert falling.steps[0].noise_multiplier > falling.steps[-1].noise_multiplier


@pytest.mark.parametrize(
    ("what", "options", "words"),
    [
        ("noisy-sdg", {}, "neither a method nor a control"),
        (3, {}, "must be a name, a plan"),
        ("noisy-sgd", {"kinds": ["replays"]}, "kind='replays'"),
        ("noisy-sgd", {"kinds": "replay"}, "must be a list"),
        ("noisy-sgd", {"kinds": ["one-run"]}, "needs a plan"),
        ("noisy-sgd", {"kinds": ["step"], "samples": 3}, "samples=3"),
        ("noisy-sgd", {"kinds": ["step"], "significance": 2.0}, "significance=2.0"),
    ],
)
def test_mistakes_are_named(what, options, words):
    with pytest.raises(InvalidValue, match=words):
        audit(what, **options)


def test_the_worst_finding_is_the_verdict():
    def with_(*verdicts):
        return Audit(mechanism="m", claim="c", findings=tuple(Finding(kind="k", verdict=v, says="") for v in verdicts))

    assert with_("consistent", "violation", "inconclusive").verdict == "violation"
    assert with_("consistent", "inconclusive").verdict == "inconclusive"
    assert with_("consistent").verdict == "consistent"
    assert with_().verdict == "inconclusive"


def test_every_control_says_what_is_wrong():
    for name in control_names():
        assert describe_fault(name).endswith("."), name
    with pytest.raises(NotImplementedError):
        Control().release(torch.zeros(1, 1), torch.ones(1), seeded(1))


@pytest.mark.parametrize("more", [{"adjacency": "add-remove"}, {"unit": "user"}, {"dataset_size": 8, "batch_size": 4}])
def test_a_plan_without_room_for_canaries_is_audited_by_what_fits(more):
    planned = plan(
        **{"delta": 1e-5, "dataset_size": 60, "batch_size": 6, "steps": 2, "noise_multiplier": 2.0, "solve": "epsilon"}
        | more
    )
    found = audit(planned, samples=20, scenes=neighbouring_pairs(adjacency=planned.recipe.budget.adjacency)[:1])
    assert {one.kind for one in found.findings} == {"replay", "step"}


@pytest.mark.parametrize("given", [{"noise_multiplier": 0.1}, {"noise_multiplier": 1.0, "significance": 1e-30}])
def test_a_claim_that_no_sample_could_reject_is_not_called_consistent(given):
    """Noise that is next to none already, or a test that is hardly ever to accuse: less would look the same."""

    class Loud(Control):
        claim = mechanism_claim(Step(noise_multiplier=given["noise_multiplier"]), l2_bound=1.0, divisor=12)

        def release(self, grads, there, randomness):
            return {
                "sum": add_gaussian_noise(clip_rows(grads[there]).sum(0), given["noise_multiplier"], randomness) / 12
            }

    found = audit(
        Loud(),
        kinds=["step"],
        scenes=neighbouring_pairs()[:1],
        significance=given.get("significance", 1e-3),
        randomness=seeded(1),
    )
    assert found.verdict == "inconclusive", found
    assert found.findings[0].samples_needed is None or found.findings[0].samples_needed > 2000


@pytest.mark.slow
def test_examples_do_not_promise_what_only_a_block_can_see():
    found = one_run(
        plan(**RUN, batch_size=600, noise_multiplier=4.0),
        canaries=600,
        kind="examples",
        task=toy(),
        randomness=seeded(1),
    )
    assert found.verdict == "consistent", found
    assert "times its mu would be" not in found.says
