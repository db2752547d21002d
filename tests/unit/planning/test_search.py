"""Search: certified, never worse than what was given, bounded, the same every time, and near the best there is."""

import pytest

from privet.errors import InvalidValue, NoSolution, Unsupported
from privet.planning import Profile, Recipe, plan, search, utility

COMMON = {
    "epsilon": 0.5,
    "delta": 1e-5,
    "dataset_size": 6000,
    "batch_size": 6000,
    "steps": 1500,
}  # full batches: planned at once
DECAY = Recipe.of(**COMMON, method="sensitivity-decay", rho_clip=9.0)
CONSTANT = Recipe.of(**COMMON)
SAMPLED = {"epsilon": 2.0, "delta": 1e-5, "dataset_size": 60000, "batch_size": 600, "steps": 3000}


def test_the_answer_is_certified_and_no_worse_than_the_start() -> None:
    best = search(DECAY, over=["rho_clip"])
    assert best.plan.guarantee.label == "certified"
    assert best.plan.guarantee.epsilon <= 0.5
    assert best.utility == utility(best.plan)
    assert best.utility.utility > utility(plan(DECAY)).utility
    assert 1 <= best.values["rho_clip"] == best.recipe.rho_clip <= 10
    assert any(trial.values == {"rho_clip": 9.0} and trial.certified for trial in best.trials)


def test_the_same_question_has_the_same_answer() -> None:
    one, two = (search(DECAY, over=["rho_clip"]) for _ in range(2))
    assert one.plan.hash == two.plan.hash
    assert one.trials == two.trials


@pytest.mark.slow
def test_both_shapes_of_dynamic_are_found() -> None:
    recipe = Recipe.of(**SAMPLED, method="dynamic")
    best = search(recipe, most=50, finalists=1)
    assert set(best.values) == {"rho_noise", "rho_clip"}
    assert best.plan.guarantee.epsilon <= 2.0
    assert best.utility.utility > utility(plan(**SAMPLED)).utility


def test_it_is_as_good_as_planning_everything() -> None:
    best = search(DECAY, over=["rho_clip"])
    for rho in (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0, 10.0):
        other = plan(Recipe.of(**COMMON, method="sensitivity-decay", rho_clip=rho))
        assert utility(other).utility <= best.utility.utility + 1e-3


def test_the_number_of_candidates_is_bounded() -> None:
    seen = []
    best = search(DECAY, over=["steps", "rho_clip"], most=20, finalists=1, progress=lambda *said: seen.append(said))
    assert len(best.trials) <= 20
    assert sum(trial.certified for trial in best.trials) <= 2
    assert all(done <= of for _, done, of in seen)
    assert {what for what, _, _ in seen} == {"planning the start", "trying", "planning the finalists"}


def test_limits_are_kept_and_edges_are_named() -> None:
    best = search(CONSTANT, over={"steps": (200, 400)}, most=20)
    assert all(200 <= trial.values["steps"] <= 400 for trial in best.trials)  # the start, 1500, is moved inside
    assert best.edges == ("steps",)
    assert len(best.plan.steps) == 400
    still = search(CONSTANT, over={"steps": (300, 300)}, most=20)
    assert (len(still.plan.steps), still.edges, len(still.trials)) == (300, (), 1)


def test_epochs_stay_when_the_batch_moves() -> None:
    recipe = Recipe.of(epsilon=2.0, delta=1e-5, dataset_size=60000, sample_rate=0.01, epochs=15)
    best = search(recipe, over=["batch_size"], most=15, finalists=1)
    assert best.recipe.epochs == 15
    assert len(best.plan.steps) * best.plan.batch_size == pytest.approx(15 * 60000, rel=0.01)


def test_the_profile_decides() -> None:
    quick = search(CONSTANT, over={"steps": (50, 3000)}, profile=Profile(half_life=1.0, dimension=10), most=15)
    slow = search(CONSTANT, over={"steps": (50, 3000)}, profile=Profile(half_life=5000.0, dimension=10), most=15)
    assert len(quick.plan.steps) <= len(slow.plan.steps)


def test_trials_are_ranked_and_say_what_is_a_guess() -> None:
    best = search(DECAY, over=["rho_clip"], most=15, finalists=1)
    for certified in (True, False):
        scores = [trial.utility for trial in best.trials if trial.certified is certified]
        assert scores
        assert scores == sorted(scores, reverse=True)
    assert [trial.certified for trial in best.trials[:3]] == [True, True, False]
    assert best.trials[0].values == best.values
    assert set(best.trials[0].as_dict()) == {"values", "noise_multiplier", "utility_estimate", "certified", "refused"}


def test_refused_candidates_are_kept_with_the_reason() -> None:
    table = Recipe.of(**COMMON | {"steps": 3}, noise_multiplier="table:3,2,1")
    best = search(table, over={"steps": (2, 5)}, most=10)
    assert len(best.plan.steps) == 3
    assert any("has 3 rows" in (trial.refused or "") for trial in best.trials)


def test_tuning_is_charged_to_the_candidates_too() -> None:
    tuned = Recipe.of(**COMMON, trials=3, trial_count_distribution="fixed")
    best = search(tuned, over=["steps"], most=12, finalists=1)
    assert best.plan.guarantee.epsilon <= 0.5
    assert best.recipe.trials == 3


@pytest.mark.parametrize(
    ("recipe", "over", "words"),
    [
        (CONSTANT, [], "names nothing"),
        (CONSTANT, ["rho_nois"], "must be one of batch_size, rho_clip, rho_noise, steps. Did you mean"),
        (CONSTANT, ["rho_noise"], "does not apply to method=None"),
        (DECAY, ["rho_noise"], "does not apply to method='sensitivity-decay'"),
        (CONSTANT, {"steps": (0, 5)}, "steps=0 must be finite and > 0"),
        (CONSTANT, {"steps": (9, 5)}, "must rise"),
        (CONSTANT, {"batch_size": (9, 6001)}, "at most 6000"),
        (DECAY, {"rho_clip": (0.5, 2)}, "must rise from 1 or more"),
        (Recipe.of(**COMMON | {"batch_size": "60 * linear:end=2"}), ["batch_size"], "needs one batch size"),
        (
            Recipe.of(**COMMON | {"epsilon": None}, noise_multiplier=1.0, solve="epsilon"),
            ["batch_size"],
            "does not apply to a search",
        ),
        ("recipe.toml", ["batch_size"], "must be a Recipe"),
    ],
)
def test_bad_questions_are_refused(recipe, over, words: str) -> None:
    with pytest.raises(InvalidValue, match=words):
        search(recipe, over=over)


def test_what_is_not_certified_is_not_searched() -> None:
    with pytest.raises(Unsupported, match="uncertified does not apply"):
        search(Recipe.of(**COMMON, method="noisy-sgd", uncertified=True), over=["batch_size"])
    with pytest.raises(Unsupported, match="accountant='gdp' gives an epsilon that is approximate here"):
        search(Recipe.of(**SAMPLED, accountant="gdp"), over=["batch_size"])


def test_another_sampling_can_be_searched() -> None:
    recipe = Recipe.of(**SAMPLED | {"steps": 200}, sampling="shuffled")
    best = search(recipe, over={"steps": (100, 400)}, most=8, finalists=1)
    assert best.plan.guarantee.epsilon <= 2.0
    assert best.plan.steps.sampling.name == "shuffled"


def test_nothing_fits() -> None:
    tiny = Recipe.of(epsilon=1e-12, delta=1e-200, dataset_size=600, batch_size=600, steps=5)
    with pytest.raises(NoSolution, match="cannot be reached"):
        search(tiny, over={"steps": (4, 6)}, most=5)
