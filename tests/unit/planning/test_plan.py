"""Plans: steps on demand, files that prove themselves, and every knob solved for."""

import json
import sys
from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest

from privet.accounting import Budget, Ledger, Step, spent
from privet.errors import InvalidValue, NoSolution, Unsupported
from privet.planning import Plan, Recipe, plan
from privet.planning.plan import check_stored_guarantee, plan_hash
from privet.planning.planned_steps import PlannedSteps

BASE = {"epsilon": 1.2, "delta": 1e-5, "dataset_size": 60000, "batch_size": 600, "steps": 3000}


@pytest.fixture(scope="module")
def dynamic():
    return plan(**BASE, method="dynamic", rho_noise=3.3, rho_clip=3.3, training={"task": "mnist"})


def test_a_plan_is_frozen(dynamic):
    with pytest.raises(FrozenInstanceError):
        dynamic.steps = ()
    with pytest.raises(FrozenInstanceError):
        dynamic.steps.peak_noise_multiplier = 0.1
    with pytest.raises(ValueError, match="read-only"):
        dynamic.steps.noise_multipliers[0] = 9.0


def test_steps_are_a_sequence(dynamic):
    steps = dynamic.steps
    assert len(steps) == 3000
    assert isinstance(steps[0], Step)
    assert steps[-1] == steps[2999] == list(steps)[-1]
    assert steps[:2] == (steps[0], steps[1])
    assert steps[0].noise_multiplier > steps[2999].noise_multiplier
    with pytest.raises(IndexError):
        steps[3000]


def test_the_ledger_is_the_steps(dynamic):
    ledger = Ledger()
    for step in dynamic.steps:
        ledger.add(step)
    assert dynamic.ledger() == ledger
    assert spent(ledger, 1e-5) == dynamic.guarantee


def test_three_keywords_are_enough():
    p = plan(epsilon=2.0, dataset_size=60000, epochs=15)
    assert p.guarantee.delta == 1 / 600000
    assert p.batch_size == 256


def test_a_recipe_and_keywords_say_the_same():
    recipe = Recipe(budget=Budget(epsilon=1.2, delta=1e-5), dataset_size=60000, batch_size=600, steps=3000)
    assert plan(recipe) == plan(**BASE)
    with pytest.raises(InvalidValue, match="epsilon cannot be given with a recipe"):
        plan(recipe, epsilon=3)
    with pytest.raises(InvalidValue, match=r"Use Recipe\.load"):
        plan("recipe.toml")


def test_a_batch_may_change():
    p = plan(**{**BASE, "batch_size": "600 * linear:end=2"})
    assert p.steps.sample_rates[[0, -1]] == pytest.approx([600 / 60000, 1200 / 60000])
    assert p.batch_size == pytest.approx(600)
    with pytest.raises(InvalidValue, match="above 1"):
        plan(**{**BASE, "batch_size": "40000 * linear:end=2"})


@pytest.mark.parametrize("accountant", ["rdp", "moments", "gdp", "zcdp", "tcdp", "basic", "optimal", "proactive"])
def test_every_accountant_can_price_a_plan(accountant):
    p = plan(**BASE, noise_multiplier="exponential:end=0.5", accountant=accountant)
    assert p.guarantee.method == accountant
    assert 1.2 * (1 - 1e-4) <= p.guarantee.epsilon <= 1.2
    assert p.certified is not None
    assert p.certified.method == "pld"


@pytest.mark.parametrize("sampling", ["shuffled", "truncated-poisson:cap=800,size=60000"])
def test_every_sampling_can_be_planned(sampling):
    p = plan(**BASE, sampling=sampling)
    assert 1.2 * (1 - 1e-4) <= p.guarantee.epsilon <= 1.2
    assert str(p.steps[0].sampling) == sampling
    assert p.guarantee.sampling == sampling


def test_what_no_theorem_covers_is_refused():
    with pytest.raises(Unsupported, match="fixed-size sampling has a theorem in 'rdp' only"):
        plan(**BASE, sampling="fixed-size")
    with pytest.raises(Unsupported, match="adjacency='replace-one'"):
        plan(**BASE, adjacency="replace-one")
    assert plan(**BASE, sampling="fixed-size", adjacency="replace-one", accountant="rdp").guarantee.label == "certified"


def test_a_large_delta_draws_a_warning():
    with pytest.warns(UserWarning, match="publishing one example"):
        plan(**{**BASE, "delta": 1e-4})


# --- other knobs ------------------------------------------------------------------------------------


def epsilon_of(p: Plan, **changes) -> float:
    return spent(replace(p.steps, _values={}, **changes).ledger(), 1e-5).epsilon


@pytest.mark.parametrize("noise", [1.1, "2.0 * exponential:end=0.5"])
def test_the_largest_number_of_steps(noise):
    p = plan(epsilon=2.0, delta=1e-5, dataset_size=60000, batch_size=600, noise_multiplier=noise, solve="steps")
    assert epsilon_of(p) == p.guarantee.epsilon <= 2.0 < epsilon_of(p, length=len(p.steps) + 1)


@pytest.mark.parametrize("length", [{"steps": 2000}, {"epochs": 20}])
def test_the_largest_batch(length):
    p = plan(epsilon=2.0, delta=1e-5, dataset_size=60000, noise_multiplier=1.1, solve="batch", **length)
    batch = round(p.batch_size)
    more = plan(delta=1e-5, dataset_size=60000, noise_multiplier=1.1, batch_size=batch + 1, solve="epsilon", **length)
    assert p.guarantee.epsilon <= 2.0 < more.guarantee.epsilon


def test_all_records_if_they_fit():
    assert (
        plan(epsilon=5.0, delta=1e-5, dataset_size=1000, noise_multiplier=50.0, steps=3, solve="batch").batch_size
        == 1000
    )


def test_the_epsilon_of_a_given_noise():
    """Bu et al. 2019, Table 1, row 3: MNIST, noise 1.1, 60 epochs."""
    p = plan(delta=1e-5, dataset_size=60000, batch_size=256, epochs=60, noise_multiplier=1.1, solve="epsilon")
    assert p.guarantee.epsilon == pytest.approx(2.3817, abs=1e-4)
    assert p.recipe.as_dict().get("epsilon") is None


@pytest.mark.parametrize(
    ("given", "words"),
    [  # the knobs of each, and parts of the answer
        (
            {"batch_size": 60000, "noise_multiplier": 0.5, "solve": "steps"},
            ["even 1 step costs 9.9", "noise_multiplier >= 7", "batch_size <= ", "epsilon >= 9.9"],
        ),
        (
            {"steps": 10**5, "noise_multiplier": 0.4, "epsilon": 0.1, "solve": "batch"},
            ["a batch of 1 of", "noise_multiplier >= ", "steps <= ", "epsilon >= "],
        ),
        (
            {"steps": 10**6, "batch_size": 60000, "epsilon": 1e-5},
            ["even noise x1048576", "steps <= ", "batch_size <= ", "epsilon >= "],
        ),
        (
            {"steps": 99, "batch_size": 9, "epsilon": 0.1, "accountant": "moments"},
            ["even noise x1048576", "epsilon >= 0.18"],
        ),
    ],
)  # fmt: skip
def test_what_is_out_of_reach_names_what_would_fit(given, words):
    with pytest.raises(NoSolution) as caught:
        plan(**{"epsilon": 0.5, "delta": 1e-5, "dataset_size": 60000, **given})
    for word in words:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_advice_is_true():
    given = {"epsilon": 0.5, "delta": 1e-5, "dataset_size": 60000, "batch_size": 60000, "noise_multiplier": 0.5}
    with pytest.raises(NoSolution) as caught:
        plan(**given, solve="steps")
    advised = dict(part.split(" ")[::2] for part in str(caught.value).split("unchanged: ")[1].rstrip(".").split(", "))
    for knob, value in advised.items():
        changed = {**given, knob: float(value)}
        assert len(plan(**changed, solve="steps").steps) >= 1


# --- files ------------------------------------------------------------------------------------------


def test_a_plan_survives_its_file(dynamic, tmp_path):
    file = tmp_path / "plan.json"
    dynamic.save(file)
    found = Plan.load(file)
    assert found == dynamic
    assert found.hash == dynamic.hash
    assert np.array_equal(found.steps.noise_multipliers, dynamic.steps.noise_multipliers)
    assert found.recipe.training == {"task": "mnist"}
    again = tmp_path / "again.json"
    found.save(again)
    assert again.read_bytes() == file.read_bytes()


def test_a_plan_of_100_000_steps_is_small(tmp_path):
    p = plan(
        epsilon=2.0,
        delta=1e-6,
        dataset_size=60000,
        batch_size=64,
        steps=100_000,
        noise_multiplier="exponential:end=0.3",
    )
    p.save(tmp_path / "plan.json")
    assert (tmp_path / "plan.json").stat().st_size < 3000
    found = Plan.load(tmp_path / "plan.json")
    assert found.steps[99_999].noise_multiplier == p.steps[99_999].noise_multiplier


def test_a_trillion_equal_steps_take_no_memory():
    steps = PlannedSteps(length=10**12, sample_rate=1e-12, peak_noise_multiplier=2.0)
    assert steps[10**12 - 1] == steps[0] == Step(noise_multiplier=2.0, sample_rate=1e-12)
    assert steps.ledger().steps == 10**12
    with pytest.raises(InvalidValue, match=r"steps=100000000 must be at most 1e\+07"):
        PlannedSteps(length=10**8, sample_rate=0.1, noise_schedule="exponential:end=0.3")


def rehashed(content: dict) -> dict:
    return content | {"hash": plan_hash({key: value for key, value in content.items() if key != "hash"})}


EDITS = {
    "less noise": (("steps", "peak_noise_multiplier"), 1.0, "guarantee.epsilon="),
    "more steps": (("steps", "length"), 3001, "steps.length=3001 does not follow from the recipe"),
    "another rate": (("steps", "sample_rate"), 0.001, "steps.sample_rate=0.001 does not follow"),
    "another shape": (("steps", "noise_schedule"), "constant", "steps.noise_schedule=constant does not follow"),
    "another sampling": (("steps", "sampling"), "shuffled", "steps.sampling=shuffled does not follow"),
    "a better epsilon": (("guarantee", "epsilon"), 0.5, "guarantee.epsilon=0.5 does not follow from the steps"),
    "a better delta": (("guarantee", "delta"), 1e-9, "guarantee.delta=1e-09 does not follow"),
    "a better label": (("guarantee", "label"), "empirical", "guarantee.label=empirical does not follow"),
    "text for epsilon": (("guarantee", "epsilon"), "1.2", "does not follow"),
    "no lower bound": (("guarantee", "epsilon_lower"), None, "epsilon_lower=None does not follow"),
    "certified gone": (("certified",), None, "certified=None does not follow"),
    "another budget": (("recipe", "epsilon"), 0.9, "is above the recipe's budget"),
    "another recipe": (("recipe", "rho_noise"), 2.0, "steps.noise_schedule="),
    "a bad recipe": (("recipe", "epsilon"), -1, "epsilon=-1"),
    "an unknown key in the recipe": (("recipe", "epsilom"), 1, "'epsilom' is not known"),
    "an unknown key": (("extra",), 1, "the plan has 'extra', which is not known"),
    "another version": (("version",), 3, "version=3 must be 2"),
    "another format": (("format",), "privet-ledger", "is not a plan"),
    "a list for steps": (("steps",), [1, 2], "steps must be a table"),
    "a list for the recipe": (("recipe",), [], "recipe must be a table"),
    "huge steps": (("steps", "length"), 10**30, "must be at most 1e+07"),
    "half a step": (("steps", "length"), 300.5, "steps=300.5 must be a whole number"),
    "no noise": (("steps", "peak_noise_multiplier"), 0, "peak_noise_multiplier=0 must be finite and > 0"),
    "versions as numbers": (("versions", "numpy"), 2, "versions must be text"),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_plan_is_refused_even_with_a_new_hash(dynamic, tmp_path, edit):
    path, value, words = EDITS[edit]
    content = json.loads(json.dumps(dynamic.as_dict()))
    table = content
    for key in path[:-1]:
        table = table[key]
    table[path[-1]] = value
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(rehashed(content)))
    with pytest.raises(InvalidValue) as caught:
        Plan.load(file)
    assert words in str(caught.value)
    assert str(caught.value).startswith(str(file))
    assert "\n" not in str(caught.value)


def test_an_epsilon_below_what_is_proven_to_be_spent_is_refused(dynamic):
    """Another machine may round differently within the proven interval, and no further."""
    ours = replace(dynamic.guarantee, epsilon=1.2, epsilon_lower=1.2 * (1 - 1e-9))
    within, below = (ours.to_file_table() | {"epsilon": 1.2 * (1 - gap)} for gap in (5e-10, 5e-7))
    assert check_stored_guarantee("guarantee", ours, within).epsilon == within["epsilon"]
    with pytest.raises(InvalidValue, match="which the steps spend at least"):
        check_stored_guarantee("guarantee", ours, below)


def test_an_edited_plan_with_its_old_hash_is_refused(dynamic, tmp_path):
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(dynamic.as_dict()).replace('"mnist"', '"cifar"'))
    with pytest.raises(InvalidValue, match="hash: the content is not what was hashed"):
        Plan.load(file)


@pytest.mark.parametrize("key", ["format", "recipe", "steps", "guarantee", "certified", "versions", "hash"])
def test_a_plan_without_a_part_is_refused(dynamic, tmp_path, key):
    file = tmp_path / "plan.json"
    file.write_text(json.dumps({name: value for name, value in dynamic.as_dict().items() if name != key}))
    with pytest.raises(InvalidValue, match="has no"):
        Plan.load(file)


def test_a_torn_file_is_refused_wherever_it_is_torn(dynamic, tmp_path):
    file = tmp_path / "plan.json"
    dynamic.save(file)
    whole = file.read_bytes()
    for length in range(0, len(whole) - 2, 41):
        file.write_bytes(whole[:length])
        with pytest.raises(InvalidValue, match="not JSON"):
            Plan.load(file)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"format": "privet-plan", "version": NaN}', "NaN is not a number JSON has"),
        ("[" * 100_000, "nested too deeply"),
        ('{"format": "privet-plan", "version": ' + "9" * 5000 + "}", "not JSON that can be read"),
        ("[]", "is not a plan"),
        ("3", "is not a plan"),
    ],
)
def test_strange_files_are_refused(tmp_path, text, words):
    file = tmp_path / "plan.json"
    file.write_text(text)
    with pytest.raises(InvalidValue, match=words):
        Plan.load(file)


def test_files_that_are_none(dynamic, tmp_path, monkeypatch):
    with pytest.raises(InvalidValue, match="no such file"):
        Plan.load(tmp_path / "nowhere.json")
    with pytest.raises(InvalidValue, match="is no plain file"):
        Plan.load(tmp_path)
    with pytest.raises(InvalidValue, match="cannot be written"):
        dynamic.save(tmp_path / "no" / "folder.json")
    (tmp_path / "bytes").write_bytes(b"\xff{}")
    with pytest.raises(InvalidValue, match="byte 0 is not text"):
        Plan.load(tmp_path / "bytes")
    dynamic.save(tmp_path / "plan.json")
    monkeypatch.setattr(sys.modules["privet.planning.plan"], "MOST_BYTES", 100)
    with pytest.raises(InvalidValue, match="MiB"):
        Plan.load(tmp_path / "plan.json")


def test_a_published_plan_survives_its_file_too(tmp_path):
    for name in ("auto-time", "dyn-s-sigma", "proactive", "noise-decay-tcdp"):
        p = plan(**BASE, method=name, uncertified=True)
        p.save(tmp_path / "plan.json")
        assert Plan.load(tmp_path / "plan.json") == p


@pytest.mark.parametrize("more", [
    {"solve": "steps", "noise_multiplier": 2.0, "steps": None},
    {"solve": "batch", "noise_multiplier": 2.0, "batch_size": None},
    {"solve": "epsilon", "noise_multiplier": "2 * linear:end=0.5", "epsilon": None},
    {"noise_multiplier": [3, 2, 1], "steps": 3},
    {"batch_size": "600 * linear:end=2"}, {"sampling": "shuffled"},
])  # fmt: skip
def test_every_kind_of_plan_survives_its_file(tmp_path, more):
    p = plan(**{**BASE, **more})
    p.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == p


@pytest.mark.slow
@pytest.mark.parametrize(
    "shape",
    [
        {"batch_size": 2048, "method": "dynamic", "rho_noise": 3.3, "rho_clip": 3.3},
        {"batch_size": 600, "noise_multiplier": "step:factor=0.7,every=10"},
        {"sample_rate": 0.004, "noise_multiplier": "linear:end=0.5"},
    ],
)
def test_short_schedules_are_met_as_closely_as_long_ones(shape):
    p = plan(epsilon=1.2, delta=1e-5, dataset_size=60000, steps=100, **shape)
    assert 1.2 * (1 - 1e-4) <= p.guarantee.epsilon <= 1.2
    assert p.guarantee.width < 1e-4
