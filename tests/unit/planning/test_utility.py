"""The utility estimate: the recursion step by step, a loss whose exact course is known, and what it must not do."""

import math
from importlib import import_module

import numpy as np
import pytest

from privet.errors import InvalidValue, Unsupported
from privet.planning import Plan, Profile, plan, utility
from privet.planning.planned_steps import PlannedSteps
from privet.planning.utility import MOST_BLOCKS, estimate, noise_std

SIZE = 60000
MOVING = PlannedSteps(
    length=300,
    sample_rate=0.01,
    peak_noise_multiplier=3.0,
    noise_schedule="exponential:end=0.3",
    clip_schedule="2 * linear:end=0.3",
)


def planned(**more: object) -> Plan:
    return plan(
        **{
            "dataset_size": SIZE,
            "delta": 1e-5,
            "batch_size": 600,
            "steps": 200,
            "noise_multiplier": 1.5,
            "solve": "epsilon",
        }
        | more
    )


def slow_gap(steps: PlannedSteps, profile: Profile, *, bound: bool = True) -> float:
    """The documented recursion, one step at a time, over a fine grid of learning rates.

    `bound=False`: the exact course of (c/2) |x|^2 with c = kappa L, which the descent lemma may only overstate.
    """
    kappa = 1 - 2 ** (-1 / profile.half_life)
    mean = profile.alignment * profile.norms[0]
    places = np.linspace(0, 1, len(profile.norms))
    terms = []
    for i, step in enumerate(steps):
        norm = float(np.interp((i + 0.5) / len(steps), places, profile.norms))
        batch = step.sample_rate * SIZE
        sampling = (1 - step.sample_rate) * min(norm, step.clipping_norm) ** 2 / batch
        terms.append(
            (
                min(1, step.clipping_norm / norm),
                sampling + profile.dimension * (step.noise_multiplier * step.clipping_norm / batch) ** 2,
            )
        )
    y = np.geomspace(1e-4, 1, 1500) / max(kept for kept, _ in terms)
    x = np.ones(1500)
    for kept, spread in terms:
        z = y * kept
        if bound:
            x = (1 - kappa * z * (2 - z)) * x + kappa * y**2 * spread / mean**2
        else:  # E f = (1 - eta c k)^2 f + (c / 2) eta^2 spread, eta = y / L, f_0 = mean^2 / (2 c)
            x = (1 - kappa * z) ** 2 * x + (kappa * y) ** 2 * spread / mean**2
    return min(1.0, float(x.min()))


PROFILES = {
    "default": Profile(),
    "small model": Profile(dimension=650, half_life=20.0),
    "rising norms": Profile(norms=(0.5, 3.0, 1.0), dimension=5000, alignment=0.8),
    "one norm": Profile(norms=(1.0,), dimension=100, half_life=7.5),
}


@pytest.mark.parametrize("name", PROFILES)
def test_the_estimate_is_the_documented_recursion(name: str) -> None:
    profile = PROFILES[name]
    found = estimate(MOVING, dataset_size=SIZE, profile=profile)
    assert found.gap == pytest.approx(slow_gap(MOVING, profile), rel=1e-4)
    assert found.utility == 1 - found.gap


@pytest.mark.parametrize("name", PROFILES)
def test_a_quadratic_does_at_least_as_well(name: str) -> None:
    profile = PROFILES[name]
    assert slow_gap(MOVING, profile, bound=False) <= estimate(MOVING, dataset_size=SIZE, profile=profile).gap


def test_the_noise_energy_is_the_sum_of_squared_norms() -> None:
    by_hand = sum(
        26010 * (step.noise_multiplier * step.clipping_norm / (step.sample_rate * SIZE)) ** 2 for step in MOVING
    )
    assert estimate(MOVING, dataset_size=SIZE).noise_energy == pytest.approx(by_hand, rel=1e-12)
    long = PlannedSteps(
        length=5 * MOST_BLOCKS + 7,
        sample_rate=0.01,
        peak_noise_multiplier=2.0,
        noise_schedule="cosine:end=0.2",
        batch_schedule="linear:end=3",
    )
    by_hand = float(np.sum(26010 * (long.noise_multipliers / (long.sample_rates * SIZE)) ** 2))
    assert estimate(long, dataset_size=SIZE).noise_energy == pytest.approx(by_hand, rel=1e-12)


def test_stretches_stand_for_their_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    long = PlannedSteps(
        length=1000,
        sample_rate=0.01,
        peak_noise_multiplier=3.0,
        noise_schedule="exponential:end=0.3",
        clip_schedule="exponential:end=0.5",
    )
    exact = estimate(long, dataset_size=SIZE).gap
    monkeypatch.setattr(import_module("privet.planning.utility"), "MOST_BLOCKS", 150)
    assert estimate(long, dataset_size=SIZE).gap == pytest.approx(exact, rel=1e-3)


def test_the_limits_are_right() -> None:
    free = PlannedSteps(length=400, sample_rate=1.0, peak_noise_multiplier=1e-9)
    assert estimate(free, dataset_size=SIZE, profile=Profile(half_life=100)).gap == pytest.approx(2**-4, rel=0.2)
    drowned = PlannedSteps(length=400, sample_rate=0.01, peak_noise_multiplier=1e9)
    assert estimate(drowned, dataset_size=SIZE).utility == pytest.approx(0, abs=1e-6)
    endless = estimate(PlannedSteps(length=10**12, sample_rate=0.01, peak_noise_multiplier=1e4), dataset_size=SIZE)
    assert 0 <= endless.gap <= 1


@pytest.mark.parametrize("clip", [1e-200, 1e-3, 0.1])
def test_a_clip_below_all_norms_is_made_up_for_by_the_learning_rate(clip: float) -> None:
    at = {"length": 300, "sample_rate": 0.01, "peak_noise_multiplier": 2.0}
    small, smaller = (
        estimate(PlannedSteps(**at, clip_schedule=f"constant:value={c}"), dataset_size=SIZE).gap
        for c in (0.5, 0.5 * clip)
    )
    assert small == pytest.approx(smaller, rel=1e-6)


def test_a_clip_above_all_norms_only_adds_noise() -> None:
    at = {"length": 300, "sample_rate": 0.01, "peak_noise_multiplier": 2.0}
    gaps = [
        estimate(PlannedSteps(**at, clip_schedule=f"constant:value={c}"), dataset_size=SIZE).gap
        for c in (2, 4, 8, 1e200)
    ]
    assert gaps == sorted(gaps)
    assert gaps[-1] == 1


def test_the_clipping_rule_counts() -> None:
    """Normalised clipping lengthens the short gradients too, so it keeps more than all of them."""
    flat, normalised = planned(clipping_norm=1.0), planned(clipping_norm=1.0, rule="normalised")
    assert utility(flat).kept < 1
    assert utility(flat).gap != utility(normalised).gap
    unsound = plan(epsilon=2.0, dataset_size=SIZE, batch_size=600, epochs=5, method="auto-exp", uncertified=True)
    with pytest.raises(Unsupported, match="does not clip to C"):
        utility(unsound)


def test_replace_one_neighbours_have_twice_the_noise() -> None:
    once = planned(batch_size=SIZE, adjacency="zero-out")
    twice = planned(batch_size=SIZE, adjacency="replace-one")
    at = np.array([0, 199])
    assert noise_std(twice, at) == pytest.approx(2 * noise_std(once, at))
    assert utility(twice).noise_energy == pytest.approx(4 * utility(once).noise_energy)
    assert utility(twice).gap > utility(once).gap


# --- profiles ---------------------------------------------------------------------------------------


def test_a_profile_is_read_from_a_file(tmp_path) -> None:
    one, many = tmp_path / "one.csv", tmp_path / "many.csv"
    one.write_text("2\n1.5\n1\n")
    many.write_text("step,norm,loss\n0,2,9\n100,1.5,8\n200,1,7\n")
    assert Profile.load(one).norms == Profile.load(many, dimension=7).norms == (2.0, 1.5, 1.0)
    assert Profile.load(many, dimension=7).dimension == 7


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has no rows"),
        ("2\nnan\n", r"rows\[1\].*must be finite and > 0"),
        ("2\n-1\n", r"rows\[1\].*must be finite and > 0"),
        ("2\n0\n", r"rows\[1\]"),
        ("2\ninf\n", r"rows\[1\]"),
        ("2\ntwo\n", "is not a number"),
        ("step,size\n1,2\n", "column='norm' is not one of the 2 columns"),
        ("step,norm\n1,2\n3\n", "is not a number"),
    ],
)
def test_a_bad_profile_is_refused(tmp_path, text: str, words: str) -> None:
    file = tmp_path / "profile.csv"
    file.write_text(text)
    with pytest.raises(InvalidValue, match=words):
        Profile.load(file)


def test_a_missing_profile_is_refused(tmp_path) -> None:
    with pytest.raises(InvalidValue, match="cannot be read"):
        Profile.load(tmp_path / "nowhere.csv")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"norms": ()}, "is empty"),
        ({"norms": (1.0, math.nan)}, "must be finite and > 0"),
        ({"dimension": 0}, "dimension=0"),
        ({"dimension": 2.5}, "dimension=2.5"),
        ({"half_life": 0.0}, "half_life=0.0"),
        ({"half_life": 0.5}, "half_life=0.5 must be at least 1"),
        ({"half_life": math.inf}, "half_life=inf"),
        ({"alignment": 1.5}, "alignment=1.5 must be at most 1"),
        ({"alignment": -1.0}, "alignment=-1.0"),
    ],
)
def test_a_bad_field_is_refused(given, words: str) -> None:
    with pytest.raises(InvalidValue, match=words):
        Profile(**given)
