"""Recipes that charge for tuning: the whole meets the budget, one run is shown, nonsense is refused, files agree."""

import json
import math
from dataclasses import replace
from functools import cache

import pytest

from privet.accounting import Ledger, spent
from privet.accounting.selection import private_selection, repeated_runs
from privet.errors import InvalidValue, Unsupported
from privet.planning import Plan, Recipe, plan
from privet.planning.plan import plan_hash

BASE = {"epsilon": 2.0, "delta": 1e-5, "dataset_size": 60000, "batch_size": 600, "steps": 1500}
LAWS = {
    "geometric": {"trials_mean": 10, "trial_count_distribution": "geometric"},
    "poisson": {"trials_mean": 10, "trial_count_distribution": "poisson"},
    "fixed": {"trials": 10},
    "disjoint": {"trials": 10, "trial_count_distribution": "disjoint"},
}
NAMES = {
    "geometric": "rdp, best of geometric(10) runs",
    "poisson": "rdp, best of poisson(10) runs",
    "fixed": "pld, all of 10 runs",
    "disjoint": "pld, 10 runs on disjoint parts",
}


@cache
def planned(law: str) -> Plan:
    return plan(**BASE, **LAWS[law])


@pytest.mark.parametrize("law", LAWS)
def test_the_whole_meets_the_budget_and_says_so(law):
    p = planned(law)
    assert 2.0 * (1 - 1e-4) <= p.guarantee.epsilon <= 2.0
    assert (p.guarantee.label, p.guarantee.method) == ("certified", NAMES[law])
    assert p.certified == p.guarantee
    assert p.one_run == spent(p.ledger(), 1e-5)
    assert p.one_run.epsilon < p.guarantee.epsilon or law == "disjoint"


def test_the_price_of_the_whole_is_what_the_laws_charge():
    for law in ("geometric", "poisson"):
        assert planned(law).guarantee == private_selection(planned(law).ledger(), 1e-5, law=law, mean=10)
    fixed, disjoint = planned("fixed"), planned("disjoint")
    ten = Ledger()
    for _ in range(10):
        for step, count in fixed.ledger():
            ten.add(step, count)
    assert fixed.guarantee.epsilon == spent(ten, 1e-5).epsilon
    assert (fixed.guarantee.steps, disjoint.guarantee.steps) == (15000, 1500)
    assert disjoint.guarantee.epsilon == plan(**BASE).guarantee.epsilon


def test_the_noise_is_in_the_order_of_the_charges():
    one = plan(**BASE)
    assert planned("disjoint").peak_noise_multiplier == one.peak_noise_multiplier
    assert (
        one.peak_noise_multiplier
        < planned("poisson").peak_noise_multiplier
        < planned("geometric").peak_noise_multiplier
        < planned("fixed").peak_noise_multiplier
    )


@pytest.mark.parametrize("law", LAWS)
def test_more_trials_never_need_less_noise(law):
    key = "trials_mean" if law in ("geometric", "poisson") else "trials"
    whole = {**BASE, "batch_size": 60000, "steps": 20}  # every record in every step: quick
    heights = [plan(**whole, **{**LAWS[law], key: number}).peak_noise_multiplier for number in (1, 2, 3, 30, 300)]
    assert heights == sorted(heights)
    assert heights[0] >= plan(**whole).peak_noise_multiplier * (1 - 1e-4)
    assert heights[0] < heights[-1] or law == "disjoint"


def test_only_disjoint_parts_need_an_epsilon_for_the_choice():
    assert planned("disjoint").selection_epsilon == planned("disjoint").guarantee.epsilon
    rule = planned("disjoint").recipe.tuning.rule(2.0)
    assert "11 disjoint parts" in rule
    assert "exp(e score / 2), e = 2" in rule
    assert [planned(law).selection_epsilon for law in ("geometric", "poisson", "fixed")] == [None] * 3


@pytest.mark.parametrize("law", ["geometric", "poisson"])
def test_a_random_number_stays_secret(law):
    rule = planned(law).recipe.tuning.rule(2.0)
    assert "in secret" in rule
    assert "never how many" in rule


def test_every_knob_can_be_solved_for():
    given = {"delta": 1e-5, "dataset_size": 60000, **LAWS["geometric"]}
    steps = plan(**given, epsilon=2.0, batch_size=600, noise_multiplier=2.5, solve="steps")
    batch = plan(**given, epsilon=2.0, steps=1500, noise_multiplier=2.5, solve="batch")
    for p in (steps, batch):
        assert p.guarantee.epsilon <= 2.0
    longer = plan(**given, batch_size=600, noise_multiplier=2.5, steps=len(steps.steps) + 1, solve="epsilon")
    assert longer.guarantee.epsilon > 2.0
    assert (
        plan(
            delta=1e-5, dataset_size=60000, batch_size=600, steps=1500, noise_multiplier=2.5, trials=3, solve="epsilon"
        ).guarantee.epsilon
        > 0
    )


@pytest.mark.parametrize("accountant", ["rdp", "gdp", "moments", "zcdp"])
def test_a_fixed_number_is_priced_by_any_accountant(accountant):
    p = plan(**BASE, trials=5, accountant=accountant)
    assert p.guarantee.method == f"{accountant}, all of 5 runs"
    assert p.guarantee.epsilon == spent(repeated_runs(p.ledger(), 5), 1e-5, accountant=accountant).epsilon
    assert 2.0 * (1 - 1e-4) <= p.guarantee.epsilon <= 2.0
    assert p.certified.method == "pld, all of 5 runs"
    assert p.one_run.method == "pld"


@pytest.mark.parametrize(("law", "sampling", "adjacency"), [
    ("fixed", "shuffled", "zero-out"), ("fixed", "truncated-poisson:cap=900,size=60000", "zero-out"),
    ("geometric", "shuffled", "zero-out"), ("geometric", "fixed-size", "replace-one"),
])  # fmt: skip
def test_other_samplings_can_be_tuned(law, sampling, adjacency):
    p = plan(**BASE, **LAWS[law], sampling=sampling, adjacency=adjacency)
    assert 2.0 * (1 - 1e-3) <= p.guarantee.epsilon <= 2.0
    assert p.guarantee.sampling == sampling
    assert p.one_run.label == "certified"


def test_what_no_theorem_covers_is_refused():
    with pytest.raises(Unsupported, match="no theorem for truncated batches"):
        plan(**BASE, **LAWS["geometric"], sampling="truncated-poisson:cap=900,size=60000")
    with pytest.raises(Unsupported, match="Use trial_count_distribution='geometric'"):
        plan(**BASE, **LAWS["poisson"], sampling="fixed-size", adjacency="replace-one", accountant="rdp")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"trials_mean": 10}, "trials_mean=10 needs a law"),
        (
            {"trial_count_distribution": "geometric"},
            "trials_mean is missing. trial_count_distribution='geometric' needs it",
        ),
        ({"trial_count_distribution": "fixed"}, "trials is missing. trial_count_distribution='fixed' needs it"),
        (
            {"trial_count_distribution": "geometric", "trials": 3},
            "trials=3 does not apply to trial_count_distribution='geometric'",
        ),
        (
            {"trial_count_distribution": "disjoint", "trials_mean": 3},
            "trials_mean=3 does not apply to trial_count_distribution='disjoint'",
        ),
        ({"trials": 3, "trials_mean": 3}, "trials_mean=3 does not apply to trial_count_distribution='fixed'"),
        ({"trial_count_distribution": "geometrc", "trials_mean": 3}, "Did you mean 'geometric'"),
        ({"trial_count_distribution": 3, "trials": 3}, "trial_count_distribution=3 must be one of"),
        ({"trials": 0}, "trials=0 must be a whole number >= 1"),
        ({"trials": 2.5}, "trials=2.5 must be a whole number"),
        ({"trials": True}, "trials=True must be a whole number"),
        ({"trials": 10**7}, "trials=10000000 must be at most 1e\\+06"),
        ({"trial_count_distribution": "poisson", "trials_mean": 0.9}, "trials_mean=0.9 must be >= 1"),
        ({"trial_count_distribution": "poisson", "trials_mean": math.inf}, "trials_mean=inf"),
        ({"trial_count_distribution": "poisson", "trials_mean": "ten"}, "trials_mean='ten'"),
        ({"trial_count_distribution": "poisson", "trials_mean": 1e7}, "must be at most 1e\\+06"),
        (
            {**LAWS["geometric"], "accountant": "gdp"},
            "accountant='gdp' has no theorem for trial_count_distribution='geometric'",
        ),
        ({**LAWS["poisson"], "accountant": "pld"}, "Use accountant='rdp', or leave it out"),
        ({**LAWS["fixed"], "accountant": "proactive"}, "cannot charge for trials"),
        ({**LAWS["fixed"], "method": "noisy-sgd", "uncertified": True}, "no paper's formula charges for tuning"),
    ],
)
def test_what_cannot_be_right_is_named(given, words):
    with pytest.raises(InvalidValue, match=words) as caught:
        Recipe.of(**BASE, **given)
    assert "\n" not in str(caught.value)


def test_a_recipe_says_it_in_one_way():
    fixed = Recipe.of(**BASE, trials=3)
    assert fixed == Recipe.of(**BASE, trials=3, trial_count_distribution="fixed")
    assert Recipe.of(**fixed.as_dict()) == fixed
    assert Recipe.of(**BASE, **LAWS["geometric"]) == Recipe.of(**BASE, **{**LAWS["geometric"], "trials_mean": 10.0})
    assert Recipe.of(**BASE).tuning is None
    assert not any(key.startswith("trials") for key in Recipe.of(**BASE).as_dict())


def test_a_file_and_flags_that_win_over_it(tmp_path):
    file = tmp_path / "recipe.toml"
    file.write_text(
        'epsilon = 2\ndataset_size = 60000\nsteps = 9\ntrials_mean = "20/2"\ntrial_count_distribution = "geometric"\n'
    )
    assert Recipe.load(file).tuning.runs == 10
    assert Recipe.load(file, trials_mean=4).tuning.runs == 4
    assert Recipe.load(file, trials=4, trial_count_distribution="disjoint").tuning.name == "4 runs on disjoint parts"
    with pytest.raises(InvalidValue, match="trials=4 does not apply to trial_count_distribution='geometric'"):
        Recipe.load(file, trials=4)


# --- files ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("law", LAWS)
def test_a_tuned_plan_survives_its_file(law, tmp_path):
    planned(law).save(tmp_path / "plan.json")
    found = Plan.load(tmp_path / "plan.json")
    assert found == planned(law)
    assert found.hash == planned(law).hash


EDITS = {
    "fewer trials on average": (("recipe", "trials_mean"), 2.0, "guarantee.epsilon="),
    "another law": (("recipe", "trial_count_distribution"), "poisson", "guarantee."),
    "no law": (("recipe", "trial_count_distribution"), None, "trials_mean=10.0 needs a law"),
    "an impossible mean": (("recipe", "trials_mean"), 0.1, "trials_mean=0.1 must be >= 1"),
    "a better epsilon": (("guarantee", "epsilon"), 1.0, "guarantee.epsilon=1.0 does not follow"),
    "a better method": (("guarantee", "method"), "pld", "guarantee.method=pld does not follow"),
    "less noise": (("steps", "peak_noise_multiplier"), 1.0, "guarantee.epsilon="),
    "a better single run": (("one_run", "epsilon"), 0.1, "one_run.epsilon=0.1 does not follow"),
    "no single run": (("one_run",), None, "one_run=None does not follow"),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_tuned_plan_is_refused_even_with_a_new_hash(tmp_path, edit):
    path, value, words = EDITS[edit]
    content = json.loads(json.dumps(planned("geometric").as_dict()))
    table = content
    for key in path[:-1]:
        table = table[key]
    table[path[-1]] = value
    content["hash"] = plan_hash({key: value for key, value in content.items() if key != "hash"})
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(content))
    with pytest.raises(InvalidValue) as caught:
        Plan.load(file)
    assert words in str(caught.value)


def test_the_tuning_cannot_be_cut_out_of_a_file(tmp_path):
    """Without its law a plan would promise the whole budget to one run: its steps do not give that guarantee."""
    content = json.loads(json.dumps(planned("geometric").as_dict()))
    del content["one_run"], content["recipe"]["trials_mean"], content["recipe"]["trial_count_distribution"]
    content["hash"] = plan_hash({key: value for key, value in content.items() if key != "hash"})
    (tmp_path / "plan.json").write_text(json.dumps(content))
    with pytest.raises(InvalidValue, match="does not follow from the steps"):
        Plan.load(tmp_path / "plan.json")


def test_a_plan_without_tuning_has_no_new_key():
    p = plan(**BASE)
    assert "one_run" not in p.as_dict()
    assert p.one_run is None
    assert replace(p.recipe, trials=2).tuning.trial_count_distribution == "fixed"
