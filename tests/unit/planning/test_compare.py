"""Plans side by side: the same steps priced three ways, names, notes, and the figure's numbers."""

import csv
from dataclasses import replace
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np
import pytest

from privet.accounting import spent
from privet.errors import InvalidValue
from privet.planning import Profile, Recipe, compare, plan
from privet.planning.compare import Comparison, method_recipes, unique_name
from privet.reporting import figures, plan_figures
from privet.reporting.plan_figures import MOST_DRAWN, check_plot, save_comparison

COMMON = {"epsilon": 2.0, "delta": 1e-5, "dataset_size": 60000, "batch_size": 600, "steps": 3000}


@pytest.fixture(scope="module")
def found() -> Comparison:
    return compare(method_recipes(["noisy-sgd", "dynamic"], rho_noise=3.0, rho_clip=2.0, **COMMON))


@pytest.fixture(scope="module")
def quick() -> Comparison:
    """Two clips over one noise: one curve."""
    return compare(method_recipes(["noisy-sgd", "sensitivity-decay"], rho_clip=2.0, **COMMON | {"steps": 700}))


def test_every_plan_is_priced_three_ways(found: Comparison) -> None:
    for row in found.rows:
        assert row.plan.certified is not None
        assert row.plan.certified.epsilon <= 2.0
        assert row.clt == spent(row.plan.ledger(), 1e-5, accountant="gdp")
        assert row.renyi == spent(row.plan.ledger(), 1e-5, accountant="rdp")
        assert row.clt.label == "approximate"
        assert row.renyi.label == "certified"
        assert row.utility is not None
        assert row.utility.label == "estimate"
    assert found.same_budget
    assert found.notes == []


def test_growing_mu_spends_later(found: Comparison) -> None:
    """Du et al. 2021: slower in the early rounds, faster in the later (Fig. 2); between CLT and Rényi here (Fig. 4)."""
    constant, dynamic = (spent(row.plan.ledger().first(1500), 1e-5).epsilon for row in found.rows)
    assert dynamic < 0.9 * constant
    for row in found.rows:
        assert row.clt is not None
        assert row.renyi is not None
        assert row.clt.epsilon < row.plan.guarantee.epsilon < row.renyi.epsilon


def test_first_and_last(found: Comparison) -> None:
    dynamic = found.rows[1]
    steps = dynamic.plan.steps
    assert dynamic.noise_multiplier == (steps[0].noise_multiplier, steps[-1].noise_multiplier)
    assert dynamic.noise_multiplier[0] / dynamic.noise_multiplier[1] == pytest.approx(3.0, rel=1e-3)
    assert dynamic.clipping_norm == (steps[0].clipping_norm, steps[-1].clipping_norm)
    assert dynamic.noise_std == pytest.approx(
        (steps[0].noise_multiplier * steps[0].clipping_norm, steps[-1].noise_multiplier * steps[-1].clipping_norm)
    )


def test_recipes_differ_in_the_method_alone() -> None:
    made = method_recipes(["noisy-sgd", "growing-mu", "growing-mu"], rho_noise=3.0, **COMMON)
    assert list(made) == ["noisy-sgd", "growing-mu"]
    assert replace(made["growing-mu"], method="noisy-sgd", rho_noise=None) == made["noisy-sgd"]


@pytest.mark.parametrize(
    ("methods", "more", "words"),
    [
        ([], {}, "must be a list of names"),
        ("dynamic", {}, "must be a list of names"),
        (["dynamc"], {}, "Did you mean 'dynamic'"),
        (["noisy-sgd"], {"rho_noise": 3.0}, "has no meaning for any of methods=noisy-sgd"),
        (["noisy-sgd"], {"bacth": 3}, "Did you mean 'batch_size'"),
    ],
)
def test_bad_methods_are_refused(methods, more, words: str) -> None:
    with pytest.raises(InvalidValue, match=words):
        method_recipes(methods, **COMMON, **more)


@pytest.mark.parametrize(("plans", "words"), [([], "plans=0"), ([3], "must be a Plan or a Recipe"), ([1] * 13, "=13")])
def test_bad_plans_are_refused(plans, words: str) -> None:
    with pytest.raises(InvalidValue, match=words):
        compare(plans)


def test_names_are_told_apart() -> None:
    assert unique_name("a", ["a", "a (2)"]) == "a (3)"
    one = plan(**COMMON)
    again = compare([one, one, plan(**COMMON, method="noisy-sgd")])
    assert [row.name for row in again.rows] == ["own shapes", "own shapes (2)", "noisy-sgd"]


def test_different_budgets_are_noted() -> None:
    rows = [plan(**COMMON | {"epsilon": epsilon}) for epsilon in (1.0, 2.0)]
    mixed = compare(rows)
    assert not mixed.same_budget
    assert "budgets differ" in mixed.notes[0]
    assert mixed.as_dict()["same_budget"] is False
    priced = [
        plan(dataset_size=60000, delta=1e-5, batch_size=600, steps=100, noise_multiplier=n, solve="epsilon")
        for n in (1.0, 2.0)
    ]
    assert not compare(priced).same_budget
    assert compare([priced[0], priced[0]]).same_budget


def test_what_is_not_proven_is_noted() -> None:
    both = method_recipes(["auto-step", "noisy-sgd"], uncertified=True, **COMMON)
    claim, approximate = compare(both).rows
    assert (claim.clt, claim.renyi, claim.utility, claim.plan.certified) == (None, None, None, None)
    assert claim.over_budget
    assert approximate.over_budget
    notes = " ".join(compare(both).notes)
    assert "no proof covers its clipping rule 'own_norm'" in notes
    assert "noisy-sgd: what is certified exceeds its budget" in notes


def test_a_missing_theorem_is_a_blank() -> None:
    fixed = Recipe.of(**COMMON | {"adjacency": "replace-one", "sampling": "fixed-size", "accountant": "rdp"})
    row = compare([fixed]).rows[0]
    assert row.clt is None
    assert row.renyi is not None


# --- the figure -------------------------------------------------------------------------------------


def test_the_numbers_of_every_line(quick: Comparison, tmp_path: Path) -> None:
    save_comparison(quick, tmp_path / "c.csv")
    rows = list(csv.DictReader((tmp_path / "c.csv").read_text(encoding="utf-8").splitlines()))
    for row in quick.rows:
        mine = [r for r in rows if r["plan"] == row.name]
        assert {r["quantity"] for r in mine} == {"noise_multiplier", "clipping_norm", "noise_std", "epsilon"}
        at = {r["quantity"]: r for r in mine if r["step"] == "700"}
        assert float(at["noise_std"]["value"]) == pytest.approx(row.noise_std[1])
        last = {r["method"]: r for r in mine if r["quantity"] == "epsilon" and r["step"] == "700"}
        assert float(last["pld"]["value"]) == row.plan.guarantee.epsilon
        assert float(last["pld"]["lower"]) == row.plan.guarantee.epsilon_lower
        assert {name: r["label"] for name, r in last.items()} == {
            "pld": "certified",
            "gdp": "approximate",
            "rdp": "certified",
        }
        assert np.all(np.diff([float(r["value"]) for r in mine if r["method"] == "pld"]) >= 0)


@pytest.mark.slow
def test_no_drawn_bound_lies_below_the_next_computed_one(quick: Comparison) -> None:
    """A straight line from one point to the next would."""
    curves = plan_figures._curves(quick.rows[:1])
    one = Comparison(rows=quick.rows[:1], profile=quick.profile)
    for draw in (
        lambda axes: plan_figures._draw_epsilon(axes, one, curves),
        lambda axes: figures._draw_curve(axes, curves[quick.rows[0].name][0], 0),
    ):
        axes = MagicMock()
        draw(axes)
        steps, drawn = axes.plot.call_args_list[0].args
        curve = curves[quick.rows[0].name][0]
        for low, high, bound in zip(curve.steps[:-1], curve.steps[1:], curve.upper[1:], strict=True):
            assert np.interp((low + high) / 2, steps, drawn) == bound


@pytest.mark.slow
def test_the_figure_says_what_is_proven(quick: Comparison, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import matplotlib

    matplotlib.use("Agg")
    monkeypatch.setitem(matplotlib.rcParams, "svg.fonttype", "none")  # text stays text
    file = tmp_path / "compare.svg"
    save_comparison(quick, file)
    text = file.read_text(encoding="utf-8")
    for words in (
        "certified: lower and upper bound",
        "approximate: CLT",
        "certified: Rényi",
        "(estimate)",
        "sensitivity-decay",
    ):
        assert words in text


def test_too_many_plans_to_tell_apart() -> None:
    with pytest.raises(InvalidValue, match="can show 6 plans, not 7"):
        check_plot(Path("a.png"), plans=MOST_DRAWN + 1)
    check_plot(Path("a.csv"), plans=MOST_DRAWN + 1)


def test_the_profile_moves_the_estimate_only(found: Comparison) -> None:
    plans = {row.name: row.plan for row in found.rows}
    other = compare(plans, profile=Profile(dimension=10**7))
    for ours, theirs in zip(found.rows, other.rows, strict=True):
        assert ours.plan is theirs.plan
        assert ours.clt == theirs.clt
        assert ours.utility is not None
        assert theirs.utility is not None
        assert theirs.utility.utility < ours.utility.utility
