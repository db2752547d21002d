"""`privet plan`, `privet list methods` and `privet epsilon --from plan.json`, as a user types them."""

import json
import re
from pathlib import Path

import pytest

from privet.planning import METHODS, Plan
from typed import answer, refused, run

KNOBS = "--size 60000 --batch 256 --epochs 60 --delta 1e-5"
BASE = f"plan {KNOBS} --epsilon 1.2"
DYNAMIC = f"{BASE} --method dynamic --rho-noise 3.3 --rho-clip 3.3 --clip 1.0"


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("plan") / "plan.json"
    assert run(DYNAMIC, "--out", str(file)).exit_code == 0
    return file


def test_the_short_answer_carries_its_label(tmp_path: Path) -> None:
    result = run(DYNAMIC, "--out", str(tmp_path / "plan.json"))
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].startswith("epsilon <= 1.19")
    assert "[certified: pld, true value >= 1.19" in lines[0]
    assert "14063 steps, expected batch size 256, 60,000 examples" in result.stdout
    assert lines[-1] == f"wrote {tmp_path / 'plan.json'}"
    assert result.stderr == ""
    assert Plan.load(tmp_path / "plan.json").guarantee.epsilon <= 1.2


def test_json_has_the_fields_of_a_plan() -> None:
    found = answer(DYNAMIC)
    assert found["guarantee"]["label"] == "certified"
    assert found["steps"] == 14063
    assert found["noise_multiplier"][0] / found["noise_multiplier"][1] == pytest.approx(3.3, rel=1e-3)
    assert found["recipe"]["rho_clip"] == 3.3
    assert found["hash"].startswith("sha256:")


def test_a_file_says_the_same_and_flags_win(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        'epsilon = 1.2\ndelta = 1e-5\ndataset_size = 60000\nbatch_size = 256\nepochs = 60\nmethod = "noisy-sgd"\n'
    )
    from_file, from_flags = answer("plan", str(recipe)), answer(BASE, "--method", "noisy-sgd")
    assert from_file["hash"] == from_flags["hash"]
    assert answer("plan", str(recipe), "--epsilon", "3")["peak_noise_multiplier"] < from_file["peak_noise_multiplier"]


def test_a_number_and_its_shape_are_one_schedule() -> None:
    found = answer("plan --size 60000 --steps 3000 --solve epsilon --batch 600 --batch-schedule linear:end=2 --noise 3 "
                   "--noise-schedule exponential:end=0.5 --clip 4 --clip-schedule linear:end=0.5")  # fmt: skip
    assert found["noise_multiplier"] == pytest.approx([3.0, 1.5])
    assert found["clipping_norm"] == pytest.approx([4.0, 2.0])
    assert found["sample_rate"] == pytest.approx([0.01, 0.02])


@pytest.mark.parametrize(
    ("more", "knob"),
    [
        ("--batch 600 --noise 1.1 --epsilon 2 --solve steps", "steps"),
        ("--steps 3000 --noise 1.1 --epsilon 2 --solve batch", "batch"),
        ("--steps 3000 --batch 600 --noise 1.1 --solve epsilon", "epsilon"),
    ],
)
def test_every_knob_can_be_solved_for(more: str, knob: str) -> None:
    found = answer(f"plan --size 60000 --delta 1e-5 {more}")
    assert found["recipe"]["solve"] == knob
    assert found["guarantee"]["epsilon"] <= (2 if knob != "epsilon" else 10)


def test_as_published_is_a_claim_and_says_so() -> None:
    text = run(BASE, "--method", "auto-linear", "--as-published").stdout
    assert text.startswith("epsilon claimed 1.2 at delta 1e-05 [claimed")
    assert "guarantee         none" in text
    assert answer(BASE, "--method", "auto-linear", "--as-published")["certified"] is None
    text = run(DYNAMIC, "--as-published").stdout
    assert text.startswith("epsilon ~ 1.2")
    assert "certified         epsilon <= 1.22" in text


def test_the_printed_noise_keeps_the_budget() -> None:
    printed = re.search(r"noise multiplier +([\d.]+) \(", run(BASE).stdout)
    assert printed is not None
    assert 0 <= float(printed.group(1)) - answer(BASE)["noise_multiplier"][0] < 1e-5


@pytest.mark.parametrize(("batch", "verdict"), [(256, "holds"), (600, "fails")])
def test_the_closed_form_stands_beside_the_certified_noise(batch: int, verdict: str) -> None:
    line = f"plan --size 60000 --batch {batch} --steps 60000 --epsilon 2 --delta 1e-5 --method proactive"
    for more in ((), ("--as-published",)):
        text = run(line, *more).stdout
        assert f"noise multiplier 3.67599; its condition {verdict} here" in text
        found = answer(line, *more)["closed_form"]
        assert found == {"noise_multiplier": pytest.approx(3.676, abs=5e-4), "holds": verdict == "holds"}


@pytest.mark.parametrize(
    ("more", "method"),
    [
        ("--trials-mean 10 --trials-law geometric", "rdp, best of geometric(10) runs"),
        ("--trials 3", "pld, all of 3 runs"),
        ("--trials 3 --trials-law disjoint", "pld, 3 runs on disjoint parts"),
    ],
)
def test_tuning_is_charged_and_one_run_is_shown(more: str, method: str, tmp_path: Path) -> None:
    text = run(f"{BASE} {more}", "--out", str(tmp_path / "plan.json")).stdout
    assert text.startswith("epsilon <= 1.19")
    assert f"[certified: {method}" in text
    assert "\n  one run           epsilon <= " in text
    assert "\n  tuning    " in text
    assert Plan.load(tmp_path / "plan.json").guarantee.method == method
    found = answer(f"{BASE} {more}")
    assert found["guarantee"]["method"] == method
    assert found["one_run"]["method"] == "pld"
    assert (found["selection_epsilon"] is None) == ("disjoint" not in more)
    assert found["recipe"]["trial_count_distribution"] in method.replace("all", "fixed")


def test_a_plan_can_be_checked_by_every_accountant(plan_file: Path) -> None:
    result = run("epsilon --delta 1e-5 --json", "--from", str(plan_file))
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["epsilon"] == Plan.load(plan_file).guarantee.epsilon
    assert "gdp" in run("epsilon --delta 1e-5 --accountant all", "--from", str(plan_file)).stdout


def test_methods_are_listed_with_what_is_wrong() -> None:
    text = run("list methods").stdout
    for row in METHODS.values():
        assert row.name in text
        assert row.caveat in text
    assert [row["name"] for row in answer("list methods")["methods"]] == list(METHODS)
    one = run("list methods auto-linear").stdout
    assert "own norm" in one
    assert "normalised" in one
    assert answer("list methods auto-linear")["as_published"]["label"] == "claimed"


def test_clients_are_not_called_records() -> None:
    result = run("plan --unit client --size 100 --batch 100 --steps 10 --delta 0.01 --epsilon 1")
    assert "10 steps, expected batch size 100, 100 clients" in result.stdout
    assert "publishing one client at random" in result.stderr
    refused(run("plan --unit client --steps 10 --epsilon 1"), "It is the public number of clients.")


def test_a_large_delta_draws_one_warning() -> None:
    result = run("plan --size 100 --batch 100 --steps 10 --delta 0.01 --epsilon 1 --json")
    assert result.exit_code == 0
    assert result.stderr.startswith("privet: warning: delta=0.01 is at least 1/dataset_size")
    assert result.stderr.count("\n") == 1


# --- bad input: one line, exit 2 --------------------------------------------------------------------

FLAGS = {
    "epsilon 0": ("--epsilon 0", "epsilon=0.0 must be finite and > 0"),
    "epsilon below 0": ("--epsilon -1", "epsilon=-1.0"),
    "epsilon nan": ("--epsilon nan", "'nan' is not a finite number"),
    "epsilon inf": ("--epsilon inf", "'inf' is not a finite number"),
    "epsilon a word": ("--epsilon lots", "'lots' is not a finite number"),
    "epsilon tiny": ("--epsilon 1e-12 --delta 1e-200 --batch 60000", "cannot be reached: even noise x1048576"),
    "epsilon huge": ("--epsilon 1e300", "epsilon"),
    "delta 0": ("--delta 0", "delta=0.0 must lie strictly between"),
    "delta 1": ("--delta 1", "delta=1.0 must lie strictly between"),
    "delta 2": ("--delta 2", "delta=2.0"),
    "delta nan": ("--delta nan", "'nan'"),
    "size 0": ("--size 0", "not a whole number"),
    "size half": ("--size 2.5", "not a whole number"),
    "size below 0": ("--size -5", "not a whole number"),
    "size huge": ("--size 1e13", "not a whole number"),
    "batch above size": ("--batch 60001", "batch_size=60001 must be at most dataset_size=60000"),
    "batch 0": ("--batch 0", "batch_size=0.0 must be finite and > 0"),
    "batch below 0": ("--batch -3", "batch_size=-3.0"),
    "batch by zero": ("--batch 1/0", "not a finite number"),
    "rate and batch": ("--rate 0.1", "batch_size and sample_rate are both given"),
    "a client twice": ("--unit client --batch 99999", "Each client takes part at most once in a step"),
    "steps and epochs": ("--steps 5", "steps and epochs are both given"),
    "epochs 0": ("--epochs 0", "epochs=0.0 must be finite and > 0"),
    "epochs endless": ("--epochs 1e300", "more than 1e+12 steps"),
    "method misspelt": ("--method dynamc", "Did you mean 'dynamic'"),
    "method without rho": ("--method growing-mu", "rho_noise is missing"),
    "rho without method": ("--rho-noise 3", "rho_noise=3.0 does not apply"),
    "rho below 1": ("--method growing-mu --rho-noise 0.3", "must be >= 1"),
    "rho nan": ("--method growing-mu --rho-noise nan", "'nan'"),
    "shape misspelt": ("--noise-schedule exponental:end=0.3", "Did you mean 'exponential'"),
    "shape option misspelt": ("--noise-schedule exponential:ned=0.3", "has no option 'ned'"),
    "shape reaches 0": ("--noise-schedule linear:decay=0.001", "values must be finite and > 0"),
    "shape ends at 0": ("--noise-schedule exponential:end=0", "end=0 must be finite and > 0"),
    "shape of another length": ("--noise-schedule table:1,2,3", "has 3 rows, but there are 14063 steps"),
    "shape from no file": ("--noise-schedule table:nowhere.csv", "cannot be read"),
    "shape that runs code": ("--noise-schedule os:system", "must be a class with values"),
    "shape with a method": ("--method noisy-sgd --noise-schedule cosine", "does not apply to method='noisy-sgd'"),
    "clip 0": ("--clip 0", "clipping_norm=0.0 must be finite and > 0"),
    "clip shape reaches 0": ("--clip-schedule linear:decay=0.001", "values must be finite and > 0"),
    "batch shape alone": ("--rate 0.01 --batch-schedule cosine", "batch_size and sample_rate are both given"),
    "batch shape above the size": ("--batch 40000 --batch-schedule linear:end=2 --steps 9", "steps and epochs are"),
    "rule misspelt": ("--rule flatt", "Did you mean 'flat'"),
    "rule unsound": ("--rule l2_max", "has no guarantee"),
    "accountant misspelt": ("--accountant pdl", "Did you mean 'pld'"),
    "accountant from nowhere": ("--accountant no.where:Mine", "cannot be imported"),
    "accountant with a floor": ("--accountant moments --epsilon 0.1", "epsilon >= 0.18"),
    "relation misspelt": ("--relation replaced", "Did you mean 'replace-one'"),
    "relation without a theorem": ("--relation replace", "has no theorem here"),
    "unit unknown": ("--unit person", "unit='person' must be one of"),
    "rule that is a function": ("--rule os.path:join", "rule='os.path:join' must be a class with groups, scales"),
    "rule that is not there": ("--rule no.such.module:Thing", "rule='no.such.module:Thing' cannot be imported"),
    "rule that is a schedule": ("--rule outside_parts:Halves", "It is a class without groups, scales, l2_bound"),
    "accountant that is a rule": ("--accountant outside_parts:NoOp", "a class without unsupported_reason, bounds"),
    "accountant below the truth": ("--accountant outside_parts:Cheap", "but 'pld' proves that"),
    "sampling by an address": ("--sampling os.path:join", "sampling='os.path:join' is not known"),
    "sampling misspelt": ("--sampling posson", "Did you mean 'poisson'"),
    "sampling without a theorem": ("--sampling fixed-size", "has a theorem in 'rdp' only"),
    "sampling without options": ("--sampling truncated-poisson", "needs the option 'cap'"),
    "cap too small": ("--sampling truncated-poisson:cap=256,size=60000", "cap: a batch overflows"),
    "solve unknown": ("--solve sigma", "solve='sigma' must be one of"),
    "solve without noise": ("--solve epsilon", "asks for epsilon"),
    "solve what is given": ("--solve steps", "asks for steps, but epochs=60.0 is given"),
    "noise given twice over": ("--noise 1.1", "asks for noise, but noise_multiplier=1.1 is given"),
    "as published by nobody": ("--as-published", "uncertified needs a method"),
    "closed form and accountant": ("--method auto-exp --as-published --accountant rdp", "its epsilon is a closed form"),
    "a mean without a law": ("--trials-mean 10", "needs a law"),
    "a law without a mean": ("--trials-law poisson", "trials_mean is missing"),
    "a law misspelt": ("--trials-mean 10 --trials-law poison", "Did you mean 'poisson'"),
    "a mean below 1": ("--trials-mean 0.5 --trials-law poisson", "trials_mean=0.5 must be >= 1"),
    "no trials": ("--trials 0", "not a whole number"),
    "trials and their mean": ("--trials 3 --trials-mean 3", "trials_mean=3.0 does not apply"),
    "trials and the limit theorem": (
        "--trials-mean 9 --trials-law geometric --accountant gdp",
        "accountant='gdp' has no theorem for trial_count_distribution='geometric'",
    ),
    "trials as published": ("--trials 3 --method noisy-sgd --as-published", "no paper's formula charges for tuning"),
    "option misspelt": ("--epsilom 3", "No such option"),
    "out nowhere": ("--out no/such/folder/plan.json", "lies in a directory that does not exist"),
    "recipe nowhere": ("nowhere.toml", "there is no such file"),
}  # fmt: skip


@pytest.mark.parametrize("case", FLAGS)
def test_bad_flags_are_one_line_and_exit_2(case: str) -> None:
    more, words = FLAGS[case]
    refused(run(BASE, *more.split()), words)


RECIPES = {
    "misspelt key": ("bacth_size = 256", "'bacth_size' is not known in a recipe. Did you mean 'batch_size'?"),
    "misspelt with a hyphen": ("rho-noise = 3", "Did you mean 'rho_noise'?"),
    "misspelt table": ("[trainning]\ntask = 'a'", "Did you mean 'training'?"),
    "another version": ("version = 7", "version=7 must be 1"),
    "not TOML": ("epochs = = 3", "not TOML"),
    "given twice": ("[budget]\nepsilon = 3", "epsilon is given twice"),
    "nan": ("rho_noise = nan", "rho_noise=nan"),
    "infinite": ("epochs = inf", "epochs=inf"),
    "text for a number": ("epochs = 'sixty'", "epochs='sixty'"),
    "a number for text": ("method = 3", "method=3 is not known"),
    "a list for a rate": ("sample_rate = [1, 2]", "sample_rate"),
    "true for steps": ("steps = true", "steps=True must be a whole number"),
    "a shape of nothing": ("noise_multiplier = ''", "noise_multiplier"),
    "misspelt in training": ("[training]\nlerning = 1", "training.lerning is not known"),
    "momentum without end": ("[training]\nmomentum = 2", "training.momentum=2 must be >= 0 and < 1"),
    "a date": ("[training]\nday = 2020-01-01", "training"),
    "trials in words": ("trials = 'three'", "trials='three' must be a whole number"),
    "a law of no kind": (
        "trials_mean = 3\ntrial_count_distribution = ['geometric']",
        "trial_count_distribution=['geometric'] must be one of",
    ),
    "a shape of no kind": ("noise_multiplier = { end = 0.3 }", "needs a kind"),
}


@pytest.mark.parametrize("case", RECIPES)
def test_bad_recipes_are_one_line_and_exit_2(case: str, tmp_path: Path) -> None:
    text, words = RECIPES[case]
    recipe = tmp_path / "recipe.toml"
    more = "" if text.startswith(("epochs", "steps")) else "epochs = 3\n"
    recipe.write_text(f"epsilon = 1.0\ndelta = 1e-5\ndataset_size = 60000\n{more}{text}\n")
    result = run("plan", str(recipe))
    refused(result, words)
    assert str(recipe) in result.stderr


def test_the_corpus_is_large_enough() -> None:
    assert len(FLAGS) + len(RECIPES) >= 60


def test_a_torn_or_edited_plan_is_refused_by_epsilon(plan_file: Path, tmp_path: Path) -> None:
    torn, edited = tmp_path / "torn.json", tmp_path / "edited.json"
    torn.write_bytes(plan_file.read_bytes()[:700])
    edited.write_text(plan_file.read_text().replace('"epsilon": 1.2,', '"epsilon": 1.1,'))
    refused(run("epsilon --delta 1e-5", "--from", str(torn)), "torn or edited")
    refused(run("epsilon --delta 1e-5", "--from", str(edited)), "hash")


def test_an_unsound_plan_has_no_epsilon(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    assert run(BASE, "--method", "dyn-s", "--as-published", "--out", str(file)).exit_code == 0
    refused(run("epsilon --delta 1e-5", "--from", str(file)), "no accountant covers method='dyn-s' as published")


def test_what_a_plan_says_is_not_said_again(plan_file: Path) -> None:
    refused(run("epsilon --delta 1e-5 --noise 3", "--from", str(plan_file)), "cannot be given with --from")
    refused(run("epsilon --delta 1e-5 --relation replace", "--from", str(plan_file)), "is not the plan's")


def test_an_unknown_method_is_named() -> None:
    refused(run("list methods dynamc"), "Did you mean 'dynamic'")


def test_a_plan_is_priced_at_its_own_delta(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    run("plan --size 1000 --batch 10 --steps 20 --epsilon 1 --delta 1e-4 --out", str(file))
    own, said = (answer(f"epsilon {delta} --from", str(file)) for delta in ("", "--delta 1e-4"))
    assert (own["epsilon"], own["delta"]) == (said["epsilon"], 1e-4)
    large = run("epsilon --delta 0.5 --from", str(file))
    assert large.stderr.startswith("privet: warning: delta=0.5 is at least 1/dataset_size=0.001")
