"""Every method of the table plans and trains, and its ledger is its plan; what has no guarantee says so, or refuses."""

import numpy as np
import pytest

import tiny_task
from privet import plan
from privet.errors import Unsupported
from privet.planning.methods import METHODS
from privet.training.train import train
from privet_papers.tables.auto2023_tuning import SCHEDULERS
from privet_papers.tables.wei2021 import EIGHT

pytestmark = pytest.mark.usefixtures("few_checks")

SIZE, BATCH, STEPS = tiny_task.SIZE, 100, 4  # two epochs
UNSOUND = [name for name, method in METHODS.items() if not method.is_certified]
SHAPED = {"noise": "noise_multiplier", "clip": "clipping_norm"}  # what a method leaves open, as a recipe calls it
DECAYS = {
    "linear": "linear:start=2,decay=0.05",
    "exponential": "exponential:start=2,decay=0.05",
    "cyclic": "cyclic:start=2,half=2,decay=0.1,fade=0.01",
}


def planned(method, *, published=False, **more):
    given = dict.fromkeys(METHODS[method].needs, 2.0) | {"noise_multiplier": 2.0} | more
    return plan(
        dataset_size=SIZE,
        batch_size=BATCH,
        steps=STEPS,
        delta=1e-3,
        solve="epsilon",
        method=method,
        uncertified=published,
        **given,
    )


def trained(made, out, *, published=False, **settings):
    settings = {"lr": 0.1, "steps_per_line": STEPS, **settings}  # a given reserve need not be measured
    return train(made, tiny_task.task(), out=out, uncertified=published, **settings)


def check_ledger(run, made):
    """What was charged is what was planned, step by step; an adaptive rule's clip is its own."""
    found, wanted = run.ledger.columns(), made.ledger().columns()
    for name in ("noise_multiplier", "sample_rate"):
        one, two = (np.repeat(getattr(c, name), c.count) for c in (found, wanted))
        np.testing.assert_array_equal(one, two)
    assert run.steps == STEPS
    assert run.end == "complete"


@pytest.mark.parametrize("method", METHODS)
def test_each_method_trains_soundly_as_it_was_planned(method, tmp_path):
    made = planned(method)
    assert made.guarantee.label == "certified"
    run = trained(made, tmp_path / "a")
    check_ledger(run, made)
    assert run.guarantee.label == "certified"
    assert run.guarantee.epsilon == pytest.approx(made.guarantee.epsilon)
    assert "none" not in run.guarantee.method
    assert "raw_sensitivity" not in run.metrics[-1]


@pytest.mark.parametrize("method", METHODS)
def test_each_method_trains_as_published(method, tmp_path):
    made = planned(method, published=True)
    run = trained(made, tmp_path / "a", published=True)
    check_ledger(run, made)
    if method in UNSOUND:
        assert run.guarantee.label == "claimed"
        assert run.guarantee.epsilon_lower is None
        assert "guarantee: none" in run.guarantee.method
        assert "guarantee: none" in run.spent.method
    else:
        assert run.guarantee.label == "certified"  # by the tight accountant, whatever the paper's was


@pytest.mark.parametrize("method", UNSOUND)
def test_what_has_no_guarantee_refuses_unless_it_is_asked_for(method, tmp_path):
    made = planned(method, published=True)
    with pytest.raises(Unsupported, match=r"has no guarantee.*--uncertified"):
        trained(made, tmp_path / "a")
    assert not (tmp_path / "a").exists()
    with pytest.raises(Unsupported, match="has no guarantee"):
        plan(
            dataset_size=SIZE,
            batch_size=BATCH,
            steps=STEPS,
            delta=1e-3,
            epsilon=2.0,
            rule=METHODS[method].published_rule,
        )


@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("method", [name for name in EIGHT if METHODS[name].free])  # the other two have no decay
def test_the_eight_variants_train_under_the_three_decays(method, decay, tmp_path):
    shapes = {SHAPED[word]: DECAYS[decay] for word in METHODS[method].free}
    for published in (True, False):
        made = planned(method, published=published, **shapes)
        run = trained(made, tmp_path / str(published), published=published)
        check_ledger(run, made)
        if "noise_multiplier" in shapes:
            assert made.steps[1].noise_multiplier < made.steps[0].noise_multiplier == 2.0
        if "clipping_norm" in shapes:
            assert made.steps[1].clipping_norm < made.steps[0].clipping_norm == 2.0


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_auto_trains_by_adamw_under_each_scheduler(scheduler, tmp_path):
    made = planned("auto-linear", published=True)
    run = trained(
        made, tmp_path / "a", published=True, optimizer="adamw", weight_decay=1e-3, lr=1e-3, evaluate_every=1,
        scheduler=SCHEDULERS[scheduler],
    )  # fmt: skip
    check_ledger(run, made)
    rates = [line["lr"] for line in run.metrics]
    assert len(rates) == STEPS
    waits = ("step", "multi-step", "constant", "reduce-on-plateau")  # for more epochs than there are
    moves = scheduler not in waits
    assert (len(set(rates)) > 1) == moves
    assert max(rates) <= 1e-3 * (1 + 1e-9)


def test_the_scale_factor_shrinks_what_is_taken_for_the_sensitivity(tmp_path):
    taken = {}
    for scale in (1.0, 0.5):
        made = planned("auto-linear", published=True, rule=f"own_norm:scale={scale}")
        run = trained(made, tmp_path / str(scale), published=True, seed=0, evaluate_every=1, show_private=True)
        taken[scale] = run.metrics[0]["raw_sensitivity"]
    assert taken[0.5] == pytest.approx(0.5 * taken[1.0], rel=1e-5)


def test_the_sensitivity_that_was_taken_is_shown_only_if_asked_for(tmp_path):
    made = planned("dyn-s-l2max", published=True, clipping_norm=0.3)
    quiet = trained(made, tmp_path / "a", published=True)
    shown = trained(made, tmp_path / "b", published=True, show_private=True)
    assert not any(key.startswith("raw_") for key in quiet.metrics[-1])
    assert 0 < shown.metrics[-1]["raw_sensitivity"] <= 0.3
