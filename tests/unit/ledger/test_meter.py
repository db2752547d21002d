"""What is shown as spent is never below what was spent, and costs nothing in a step."""

import pytest

from privet import plan, spent
from privet.accounting.epsilon_curve import epsilon_curve
from privet.ledger import meter as module
from privet.ledger.meter import Meter, choose_steps_per_line, measure_line_seconds


def exact(p, steps):
    return spent(p.ledger().first(steps), p.recipe.budget.delta).epsilon


@pytest.mark.parametrize("steps", [1, 5, 40])
def test_a_short_plan_is_priced_as_asked(steps):
    p = plan(epsilon=2.0, delta=1e-5, dataset_size=1000, batch_size=50, steps=40, method="growing-mu", rho_noise=3)
    meter = Meter(p)
    assert meter.guarantee_at(steps).epsilon == pytest.approx(exact(p, steps), rel=1e-6)
    assert meter.guarantee_at(steps).epsilon <= meter.quick_guarantee(steps, 40).epsilon <= p.guarantee.epsilon
    assert meter.guarantee_at(steps).label == "certified"


def test_a_long_plan_is_read_off_one_curve_and_never_below_the_truth(monkeypatch):
    p = plan(epsilon=2.0, delta=1e-5, dataset_size=60000, batch_size=256, steps=3000, method="growing-mu", rho_noise=3)
    made = []
    monkeypatch.setattr(module, "epsilon_curve", lambda *a, **k: made.append(1) or epsilon_curve(*a, **k))
    meter = Meter(p)
    shown = [meter.quick_guarantee(n, 3000).epsilon for n in range(1, 3001)]
    assert len(made) == 1
    assert shown == sorted(shown)
    for n in (1, 77, 600, 1234, 2999):
        assert exact(p, n) * (1 - 1e-9) <= meter.guarantee_at(n).epsilon <= shown[n - 1]
        assert meter.guarantee_at(n).epsilon <= exact(p, n) * 1.02
    assert meter.guarantee_at(3000).epsilon == shown[-1] == p.guarantee.epsilon
    assert len(made) == 1


def test_nothing_is_nothing_and_marks_are_kept():
    from dataclasses import replace

    p = plan(epsilon=2.0, delta=1e-5, dataset_size=1000, batch_size=50, steps=5)
    meter = Meter(p, mark=lambda g: replace(g, label="claimed"))
    assert (meter.guarantee_at(0).epsilon, meter.guarantee_at(0).label, meter.guarantee_at(3).label) == (
        0.0,
        "claimed",
        "claimed",
    )


def test_what_pld_does_not_cover_is_priced_by_the_plans_own_accountant():
    p = plan(
        epsilon=3.0,
        delta=1e-5,
        dataset_size=1000,
        batch_size=10,
        steps=20,
        sampling="fixed-size",
        adjacency="replace-one",
        accountant="rdp",
    )
    found = Meter(p).guarantee_at(10)
    assert found.method == p.guarantee.method
    assert 0 < found.epsilon <= p.guarantee.epsilon


@pytest.mark.parametrize(
    ("steps", "step_seconds", "line", "reserve"),
    [(10**4, 0.03, 0.0003, 1), (10**4, 0.005, 0.0003, 6), (10**4, 1e-5, 0.01, 32), (500, 1e-4, 0.01, 5), (50, 0, 1, 1)],
)
def test_lines_take_a_hundredth_of_the_time_and_cost_a_hundredth_of_the_run_at_most(steps, step_seconds, line, reserve):
    assert choose_steps_per_line(steps=steps, step_seconds=step_seconds, line_seconds=line) == reserve


def test_a_line_is_timed_on_the_disk_of_the_run_and_leaves_nothing(tmp_path):
    assert measure_line_seconds(tmp_path / "runs" / "a") > 0
    assert list(tmp_path.iterdir()) == []
