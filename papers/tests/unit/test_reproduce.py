import json
import math
import os
import signal
import tomllib
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import t as t_law, ttest_rel

from privet.accounting import spent
from privet.data import task as task_of
from privet.errors import InvalidValue
from privet.federated import Federated
from privet.ledger.reading import read_ledger
from privet.training.progress import Progress
from privet.training.run import Run
from privet_papers.reproduce import choice as choosing, page, results, runner
from privet_papers.reproduce.gains import paired
from privet_papers.reproduce.kinds import accounted
from privet_papers.reproduce.results import Result
from privet_papers.reproduce.table_row import Curve, Figure, Row, capped, quick
from privet_papers.reproduce.tables import Line, cells
from privet_papers.tables import PAPERS

pytestmark = pytest.mark.usefixtures("few_checks")

GOLDEN = tomllib.loads((Path(__file__).parents[3] / "tests/golden/golden.toml").read_text(encoding="utf-8"))["row"]
ROWS = [row for paper in PAPERS.values() for row in paper.rows()]
ACCOUNTED = [row for row in ROWS if any(name.endswith("epsilon") for name in row.published) and row.recipe]


def tiny(name: str = "a", **changes: object) -> Row:
    """A row that trains in milliseconds."""
    given: dict[str, object] = {
        "paper": "bu2019", "table": "table1", "place": "made up", "kind": "trains", "task": "tiny_task:task",
        "published": {"accuracy": 90.0}, "training": {"lr": 0.5, "momentum": 0.0, "evaluate_every": 10},
        "recipe": {"dataset_size": 200, "batch_size": 50, "steps": 30, "noise_multiplier": 0.7, "delta": 1e-4},
    }  # fmt: skip
    return Row(name=name, **{**given, **changes})


def ran(rows: list[Row], out: Path, seeds: int = 1, **options: object) -> list[Result]:
    return list(runner.reproduce(runner.jobs(rows, mode="full", seeds=seeds), out=out, **options))


# --- the rows of the papers -------------------------------------------------------------------------


def test_rows_have_names_of_their_own_and_stand_in_tables_that_are_listed():
    assert len({row.key for row in ROWS}) == len(ROWS)
    for paper in PAPERS.values():
        assert {row.table for row in paper.rows()} == set(paper.tables)
        assert all(row.paper == paper.name for row in paper.rows())
        assert all("/" not in row.name for row in paper.rows())


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.key)
def test_every_row_is_a_recipe_in_full_and_in_quick(row):
    if row.kind == "not run":
        assert row.why
        assert row.published
        return
    assert row.as_recipe().count
    small = quick(row)
    if row.is_trained:
        assert small.task == "digits"
        assert small.steps <= 100
        assert small.as_recipe().base_rate <= 0.05
        assert not small.choices
        kept = ("noise", "epsilon", "clip", "method", "rho_noise", "rho_clip", "delta")
        assert {key: small.recipe.get(key) for key in kept} == {key: row.recipe.get(key) for key in kept}
        assert small.published == row.published


@pytest.mark.slow
@pytest.mark.parametrize("row", [row for row in ACCOUNTED if row.paper == "bu2019"], ids=lambda row: row.key)
def test_published_epsilons_are_reproduced(row):
    found = accounted(row)
    for name, printed in row.published.items():
        if name.endswith(("epsilon", "mu")):
            assert found[name].value == pytest.approx(printed, abs=0.02), name
    assert found["pld epsilon"].label == "certified"


def test_published_figures_agree_with_the_golden_ones():
    """The golden file was written from the paper at another time: two transcriptions."""
    names = {"CLT mu": "gdp mu", "CLT epsilon": "gdp epsilon", "MA epsilon": "moments epsilon"}
    checked = 0
    for golden in GOLDEN:
        if not golden["paper"].startswith("Bu, Dong"):
            continue
        place, _, what = golden["place"].rpartition(", ")
        for row in ROWS:
            if row.paper == "bu2019" and row.place == place and what in names:
                assert row.published[names[what]] == float(golden["value"]), golden["place"]
                checked += 1
    assert checked >= 18


def test_the_closed_form_of_the_proactive_paper_holds_and_fails_where_it_should():
    """epsilon 2 at 60,000 rounds of 60,000 records: enough noise for batches of 256, too little for 600."""
    holds = {}
    for row in PAPERS["proactive2021"].of("closed-form"):
        found = accounted(row)
        claimed, proven = found["proactive epsilon"], found["pld epsilon"]
        assert not row.published, "the abstract prints no epsilon"
        assert claimed.value == pytest.approx(float(row.name.split("-")[1]), rel=1e-3)
        assert (claimed.label, proven.label) == ("claimed", "certified")
        noise, enough = (found[name].value for name in ("noise of the closed form", "noise that is enough"))
        assert (proven.value <= claimed.value) == (noise >= enough)
        holds[row.recipe["batch_size"], row.recipe["steps"]] = proven.value <= claimed.value
    assert holds[256, 60000]
    assert not holds[600, 60000]
    assert not holds[1000, 10000]


def test_the_fingerprint_sees_what_is_run_and_not_what_is_said():
    row = tiny()
    assert replace(row, notes=("said",), published={}).fingerprint == row.fingerprint
    for changed in (
        replace(row, recipe={**row.recipe, "noise_multiplier": 0.8}),
        replace(row, training={**row.training, "lr": 0.6}),
        replace(row, choices={"lr": (0.1, 0.2)}),
        replace(row, name="b"),
        capped(row, 5),
    ):
        assert changed.fingerprint != row.fingerprint


def test_a_row_must_say_what_it_lacks():
    with pytest.raises(InvalidValue, match="why"):
        tiny(kind="not run")
    with pytest.raises(InvalidValue, match="task is missing"):
        tiny(task=None)
    with pytest.raises(InvalidValue, match="kind='train' must be one of"):
        tiny(kind="train")


# --- running ----------------------------------------------------------------------------------------


def test_a_result_says_what_was_measured_and_what_is_proven_of_the_run(tmp_path):
    (found,) = ran([tiny(published={"accuracy": 90.0, "gdp epsilon": 1.0})], tmp_path)
    run = Run.load(next(tmp_path.glob("bu2019/table1/a.full.0.*.run")))
    proven = spent(run.ledger, 1e-4)
    assert found.certified == (proven.epsilon_lower, proven.epsilon)
    assert found.certified[0] <= run.plan.certified.epsilon <= found.certified[1]
    assert found.figures["accuracy"].value == 100 * run.scores["held_out_accuracy"]
    assert found.figures["gdp epsilon"].label == "approximate"
    assert found.steps == found.planned == 30
    assert not run.noise_is_secret  # a seed
    assert found.about["source"] == runner.source()
    assert found.curve.y[-1] == found.figures["accuracy"].value


def test_a_federation_protects_clients_and_is_proven_from_its_ledger(tmp_path):
    recipe = {
        "dataset_size": 40,
        "batch_size": 10,
        "steps": 5,
        "epsilon": 3.0,
        "delta": 1e-3,
        "clipping_norm": 1.0,
        "unit": "client",
    }
    row = tiny(kind="federates", recipe=recipe, training={"algorithm": "fedsgd"},
               choices={"lr": (0.1, 0.2), "momentum": (0.0,)})  # fmt: skip
    (found,) = ran([row], tmp_path)
    place = next(tmp_path.glob("bu2019/table1/a.full.0.*.run"))
    federation = Federated.load(place)
    proven = spent(read_ledger(place).ledger, 1e-3)
    assert found.certified == (proven.epsilon_lower, proven.epsilon)
    assert (found.certified[1] <= 3.0, found.steps, found.planned) == (True, 5, 5)
    assert federation.guarantee.unit == found.about["unit"] == "client"
    assert found.figures["accuracy"].value == 100 * federation.scores["held_out_accuracy"]
    choice = json.loads((tmp_path / "bu2019/table1/a.full.choice.json").read_text())
    assert [line["candidate"]["lr"] for line in choice["scores"]] == [0.1, 0.2]
    assert found.chosen == choice["chosen"] == {"lr": federation.settings.lr, "momentum": 0.0}
    tried = Federated.load(next(tmp_path.glob("bu2019/table1/a.full.choice-0.*.run")))
    assert tried.settings.clients == 40  # on a split each has fewer records, and the plan is the same
    assert ran([row], tmp_path) == [found]  # taken from the folder


def test_more_noise_is_less_accuracy_and_less_epsilon_and_no_noise_is_most(tmp_path):
    recipe = tiny().recipe
    rows = [
        tiny("loud", recipe={**recipe, "noise_multiplier": 30.0}),
        tiny("soft", recipe={**recipe, "noise_multiplier": 0.5}),
        tiny("none", kind="baseline"),
    ]
    loud, soft, none = (ran([row], tmp_path, seeds=2) for row in rows)
    mean = lambda found: sum(r.figures["accuracy"].value for r in found) / 2  # noqa: E731
    assert mean(loud) < mean(soft) - 10
    assert mean(soft) <= mean(none) + 5
    assert loud[0].certified[1] < soft[0].certified[0]
    assert none[0].certified is None
    assert none[0].about["private"] is False


def test_what_is_there_is_not_run_again_unless_the_row_changed(tmp_path, monkeypatch):
    row = tiny()
    first = ran([row], tmp_path, seeds=2)
    monkeypatch.setattr(runner, "train", lambda *_, **__: pytest.fail("run again"))
    assert ran([replace(row, notes=("said",))], tmp_path, seeds=2) == first
    with pytest.raises(pytest.fail.Exception):
        ran([replace(row, training={**row.training, "lr": 0.1})], tmp_path)


def test_seeds_differ_and_can_be_repeated(tmp_path):
    one, two = ran([tiny()], tmp_path / "a", seeds=2)
    (again,) = ran([tiny()], tmp_path / "b")
    assert one.curve == again.curve
    assert one.curve != two.curve


class Interrupting(Progress):
    """Presses Ctrl-C after some steps, once."""

    def __init__(self) -> None:
        self.pressed = False

    def step(self, number, spent, speed):
        if number == 7 and not self.pressed:
            self.pressed = True
            os.kill(os.getpid(), signal.SIGINT)


def test_an_interrupted_run_goes_on(tmp_path, monkeypatch):
    row = tiny(training={**tiny().training, "steps_per_line": 1})
    with pytest.raises(KeyboardInterrupt):
        ran([row], tmp_path, watch=Interrupting)
    assert results.load(tmp_path, row, "full", 0) is None
    assert Run.load(next(tmp_path.rglob("*.run"))).steps < 30
    monkeypatch.setattr(runner, "train", lambda *_, **__: pytest.fail("begun again"))
    (found,) = ran([row], tmp_path)
    assert found.steps == 30
    assert len(list(tmp_path.rglob("*.run"))) == 1


def test_a_run_that_a_crash_tore_at_its_start_is_left_alone(tmp_path):
    row = tiny()
    torn = tmp_path / f"bu2019/table1/a.full.0.{row.fingerprint}.run"
    torn.mkdir(parents=True)
    (torn / "ledger.jsonl").write_text("half a li")
    (found,) = ran([row], tmp_path)
    assert found.steps == 30
    assert (torn / "ledger.jsonl").read_text() == "half a li"


def test_an_unsound_row_has_a_claim_and_no_proof(tmp_path):
    recipe = {"dataset_size": 200, "batch_size": 50, "steps": 12, "noise_multiplier": 5.0, "delta": 1e-4}
    row = tiny(recipe={**recipe, "method": "auto-linear", "uncertified": True}, label="claimed")
    (found,) = ran([row], tmp_path)
    assert found.certified is None
    assert found.claimed > 0
    assert "none: unsound" in cells([Line(row=row, results=(found,))]).rows[0]


def test_a_run_stopped_by_its_accuracy_is_certified_at_the_plan(tmp_path):
    row = tiny(training={**tiny().training, "stop_at": "accuracy=0.1", "steps_per_line": 1})
    (found,) = ran([row], tmp_path)
    assert found.steps < found.planned
    assert found.certified[1] == row.plan().certified.epsilon
    assert found.claimed < found.certified[0]


def test_a_row_that_cannot_run_is_told_of_and_the_others_run(tmp_path):
    said = []
    found = ran([tiny("bad", task="nowhere"), tiny("good")], tmp_path, tell=said.append)
    assert [result.key for result in found] == ["bu2019:table1:good"]
    assert any("bad" in text and "not run: " in text for text in said)


def test_epochs_to_a_goal_are_read_off_the_curve(tmp_path):
    row = tiny(published={"epochs to 1 %": 3.0, "epochs to 100.5 %": 9.0})
    (found,) = ran([row], tmp_path)
    assert found.figures["epochs to 1 %"].value == found.curve.x[0]
    assert "epochs to 100.5 %" not in found.figures


def test_a_trace_is_noted_over_the_steps(tmp_path):
    rows = [tiny("private", trace="raw_gradient_norm"), tiny("plain", trace="raw_gradient_norm", kind="baseline")]
    private, plain = ran(rows, tmp_path)
    for found in (private, plain):
        assert found.curve.x == tuple(float(n) for n in range(30))
        assert all(y > 0 for y in found.curve.y)
    assert plain.curve.y[-1] < plain.curve.y[0]
    assert private.certified is not None
    assert plain.certified is None


# --- choosing ---------------------------------------------------------------------------------------


def test_settings_are_chosen_on_the_training_records_alone(tmp_path, monkeypatch):
    row = tiny(choices={"lr": (1e-6, 0.5), "momentum": (0.0,)}, training={})
    said = []
    (found,) = ran([row], tmp_path, tell=said.append)
    assert found.chosen == {"lr": 0.5, "momentum": 0.0}
    assert [one["lr"] for one in found.tried] == [1e-6, 0.5]
    assert sum("on a split of the training records" in text for text in said) == 2
    kept = json.loads((tmp_path / "bu2019/table1/a.full.choice.json").read_text())
    assert [line["candidate"]["lr"] for line in kept["scores"]] == [1e-6, 0.5]
    monkeypatch.setattr(choosing, "apart", lambda _: pytest.fail("chosen again"))
    again = ran([row], tmp_path, seeds=2)[1]
    assert (again.chosen, again.tried) == (found.chosen, found.tried)


@pytest.mark.parametrize(
    ("best", "tried"), [(8.0, [1, 2, 4, 8, 16]), (1.0, [0.5, 1, 2]), (0.01, [0.125, 0.25, 0.5, 1, 2])]
)
def test_a_climb_goes_on_beyond_the_ends_of_its_list(tmp_path, best, tried):
    row = tiny(choices={"lr": (1.0, 2.0)})
    near = lambda one, task, name: -abs(math.log(one.training["lr"] / best))  # noqa: E731
    found = choosing.choice(row, file=tmp_path / "choice.json", train=near)
    assert [one["lr"] for one in found.tried] == tried
    assert found.chosen == {"lr": max(best, 0.125)}  # three values beyond an end, and no more
    assert choosing.choice(row, file=tmp_path / "choice.json", train=lambda *_: pytest.fail("again")) == found
    said = cells([Line(row=row, results=(replace(made(row, 0, 90.0), chosen=found.chosen, tried=list(found.tried)),))])
    assert any("an end of what was tried" in note for note in said.notes) == (best == 0.01)


def test_a_search_that_was_interrupted_goes_on(tmp_path):
    row, file, seen = tiny(choices={"lr": (1.0, 2.0, 4.0)}), tmp_path / "choice.json", []

    def interrupted(one, task, name):
        if len(seen) == 2:
            raise KeyboardInterrupt
        seen.append(one.training["lr"])
        return one.training["lr"]

    with pytest.raises(KeyboardInterrupt):
        choosing.choice(row, file=file, train=interrupted)
    assert json.loads(file.read_text())["chosen"] is None
    more = []
    found = choosing.choice(row, file=file, train=lambda one, *_: more.append(one.training["lr"]) or -1.0)
    assert (seen, more, found.chosen) == ([2.0, 4.0], [8.0], {"lr": 4.0})  # nothing twice


@pytest.mark.parametrize(
    "score", [{}, {"candidate": 3, "accuracy": 0.1}, {"candidate": {"lr": 1.0}, "accuracy": "x"}, 7]
)
def test_a_search_whose_file_was_edited_is_refused_in_one_line(tmp_path, score):
    row, file = tiny(choices={"lr": (1.0, 2.0)}), tmp_path / "choice.json"
    file.write_text(json.dumps({"fingerprint": row.fingerprint, "chosen": None, "scores": [score]}))
    with pytest.raises(InvalidValue, match="is not a choice"):
        choosing.choice(row, file=file, train=lambda *_: pytest.fail("tried"))


def test_a_search_that_ended_at_its_list_goes_on_and_results_of_another_choice_are_run_again(tmp_path):
    """As in folders of before climbs left their lists: seeds of one row must not have rates of their own."""
    row, file = tiny(choices={"lr": (0.01, 0.05)}, training={}), tmp_path / "bu2019/table1/a.full.choice.json"
    file.parent.mkdir(parents=True)
    scores = [{"candidate": {"lr": 0.01}, "accuracy": 0.0}, {"candidate": {"lr": 0.05}, "accuracy": 0.001}]
    file.write_text(json.dumps({"fingerprint": row.fingerprint, "chosen": {"lr": 0.05}, "scores": scores}))
    results.save(tmp_path, row, replace(made(row, 0, 1.0), chosen={"lr": 0.05}))
    said = []
    found = ran([row], tmp_path, seeds=2, tell=said.append)
    assert found[0].chosen == found[1].chosen == json.loads(file.read_text())["chosen"] != {"lr": 0.05}
    assert found[0].figures["accuracy"].value != 1.0
    assert not any("{'lr': 0.01} gives" in text or "{'lr': 0.05} gives" in text for text in said)  # known already
    results.save(tmp_path, row, replace(found[0], tried=found[0].tried[:2]))  # of a shorter search, with the same end
    assert ran([row], tmp_path, seeds=2, tell=lambda text: pytest.fail(text)) == found
    assert results.load(tmp_path, row, "full", 0) == found[0]


@pytest.mark.parametrize("choices", [{"momentum": (0.5, 0.9)}, {"optimizer": ("adam", "sgd")}, {"lr": (1.0, 1.0)}])
def test_a_list_that_does_not_grow_by_ratio_is_not_left(tmp_path, choices):
    row = tiny(choices=choices)
    seen = []
    better = lambda one, task, name: seen.append(name) or len(seen)  # noqa: E731
    found = choosing.choice(row, file=tmp_path / "choice.json", train=better)
    assert (len(seen), list(found.chosen.values())) == (2, [choices.popitem()[1][1]])


def test_what_a_baseline_leaves_open_is_chosen_too(tmp_path):
    (found,) = ran([tiny(kind="baseline", choices={"lr": (1e-9, 0.5, 1.0)}, training={"momentum": 0.0})], tmp_path)
    assert found.chosen["lr"] >= 0.5
    assert found.chosen in found.tried


def test_a_training_that_diverges_is_told_of_and_the_others_run(tmp_path):
    lost = tiny("lost", kind="baseline", trace="raw_gradient_norm", training={"lr": 1e38, "momentum": 0.0})
    said = []
    found = ran([lost, tiny("good")], tmp_path, tell=said.append)
    assert [result.key for result in found] == ["bu2019:table1:good"]
    assert any("lost" in text and "is not finite. The training diverged." in text for text in said)


def test_the_split_is_of_the_training_records_and_has_no_record_twice():
    whole = task_of("tiny_task:task")
    part = choosing.apart(whole)
    assert (part.size, len(part.held_out[0])) == (180, 20)
    together = torch.cat([part.train[0], part.held_out[0]])
    assert {tuple(row) for row in together.tolist()} == {tuple(row) for row in whole.train[0].tolist()}


# --- results, tables, the page ----------------------------------------------------------------------


def made(row: Row, seed: int | None, value: float, scale: str = "full", epsilon: float = 1.25) -> Result:
    return Result(
        key=row.key, fingerprint=row.fingerprint, scale=scale, seed=seed, figures={"accuracy": Figure(value=value)},
        delta=1e-5, certified=(epsilon - 0.001, epsilon), steps=30, planned=30, seconds=2.0,
        curve=Curve(x=(1.0, 2.0), y=(50.0, value)),
    )  # fmt: skip


def test_a_result_is_read_back_as_it_was(tmp_path):
    row = tiny()
    results.save(tmp_path, row, made(row, 0, 91.0))
    assert results.load(tmp_path, row, "full", 0) == made(row, 0, 91.0)
    assert results.load(tmp_path, row, "full", 1) is None
    assert results.load(tmp_path, replace(row, training={}), "full", 0) is None


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"format": "privet-result", "version": 1}'])
def test_a_damaged_result_is_named(tmp_path, text):
    row = tiny()
    file = results.save(tmp_path, row, made(row, 0, 91.0))
    file.write_text(text)
    with pytest.raises(InvalidValue, match=r"a\.full\.0\.json: is not a result"):
        results.load(tmp_path, row, "full", 0)


def test_cells_have_published_and_ours_with_spread_and_labels():
    row = tiny(label="approximate", published={"accuracy": 90.0, "gdp epsilon": 0.83})
    given = [made(row, seed, value) for seed, value in enumerate((80.0, 82.0, 84.0))]
    given = [replace(r, figures=r.figures | {"gdp epsilon": Figure(value=0.83451, label="approximate")}) for r in given]
    other = Row(paper="bu2019", table="table1", name="knn", place="x", kind="not run", why="quoted",
                published={"accuracy": 79.7})  # fmt: skip
    found = cells([Line(row=row, results=tuple(given)), Line(row=other, results=())])
    assert "CLT epsilon (approximate) paper / ours" in found.names
    first = dict(zip(found.names, found.rows[0], strict=True))
    assert first["accuracy % paper / ours"] == "90 / 82.00 ± 2.00"
    assert first["CLT epsilon (approximate) paper / ours"] == "0.83 / 0.8346"  # rounded up
    assert first["certified epsilon"] == "<= 1.25"
    assert first["runs"] == "3"
    assert found.rows[1][1] == "79.7 / –"
    assert "not run: quoted (knn)" in found.notes


def test_the_page_has_what_was_run_in_full_and_its_command_and_no_more(tmp_path):
    rows = PAPERS["bu2019"].of("table2")
    with pytest.raises(InvalidValue, match="no full result"):
        page.write_page(tmp_path, tmp_path / "page.md")
    for seed in (0, 1):
        results.save(tmp_path, rows[0], made(rows[0], seed, 84.0 + seed))
    results.save(tmp_path, quick(rows[1]), made(quick(rows[1]), 0, 99.0, scale="quick"))
    assert page.write_page(tmp_path, tmp_path / "page.md") == 1
    text = (tmp_path / "page.md").read_text()
    assert "`privet reproduce bu2019:table2 --rows private --full --seeds 2`" in text
    assert "84 / 84.50 ± 0.71" in text
    assert "non-private" not in text.partition("## Bu")[2]
    assert "knn" not in text


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ((95.0, 95.3, 95.2), "helps"),
        ((90.1, 90.0, 90.3), "not decided"),
        ((90.0, 99.0, 90.2), "not decided"),
        ((80.0, 80.3, 80.2), "hurts"),
    ],
)
def test_the_page_says_which_schedule_helps(tmp_path, values, verdict):
    rows = {row.name: row for row in PAPERS["du2021"].of("table1")}
    for name, figures in (("mnist-0.4-constant", (90.0, 90.1, 90.2)), ("mnist-0.4-dynamic", values)):
        for seed, value in enumerate(figures):
            results.save(tmp_path, rows[name], made(rows[name], seed, value))
    page.write_page(tmp_path, tmp_path / "page.md")
    (line,) = [line for line in (tmp_path / "page.md").read_text().split("\n") if line.startswith("| table1, mnist")]
    assert line.endswith(f"| {verdict} |")
    counts = {"helps": "helps in 1 (+5.07) and hurts in none", "hurts": "helps in none and hurts in 1 (-9.93)"}
    said = f"of 1 single settings it {counts.get(verdict, 'helps in none and hurts in none')}\n"
    assert said in (tmp_path / "page.md").read_text()
    assert "| +3.17 |" in line  # 94.35 - 91.18, as published


@pytest.mark.parametrize(
    ("of_budgets", "of_seeds", "half", "end", "short"),
    [
        (
            (1.0, 2.0, 3.0),
            (0.0, 0.0),
            t_law.ppf(0.975, 2) / math.sqrt(3),
            "not decided | is inside",
            "not decided in the mean on mnist (+2.00)",
        ),
        (
            (2.0, 2.0, 2.0),
            (-0.1, 0.1),
            t_law.ppf(0.975, 1) * 0.1,
            "helps | is below it",
            "helps in the mean on mnist (+2.00)",
        ),
    ],
)
def test_the_page_has_the_mean_gain_on_a_dataset(tmp_path, of_budgets, of_seeds, half, end, short):
    """With the wider interval: over three budgets, or over two seeds."""
    rows = {row.name: row for row in PAPERS["du2021"].of("table1")}
    for epsilon, gain in zip((0.4, 0.6, 1.2), of_budgets, strict=True):
        for seed, more in enumerate(of_seeds):
            for name, value in (("constant", 90.0), ("growing-mu", 90.0 + gain + more)):
                row = rows[f"mnist-{epsilon:g}-{name}"]
                results.save(tmp_path, row, made(row, seed, value + 0.1 * seed))
    page.write_page(tmp_path, tmp_path / "page.md")
    text = (tmp_path / "page.md").read_text()
    said = f"| table1, mnist | growing-mu | 3 | +0.58 | +2.00 | {2 - half:+.2f} to {2 + half:+.2f} | {end} |\n"
    assert said in text
    assert f"- growing-mu: {short}; of 3 single settings" in text
    helps = "growing-mu" if short.startswith("helps") else "no schedule"
    assert (
        f"- {helps} helps in the mean on every dataset; the published mean gain is above our interval in 0 of 1" in text
    )


def test_the_interval_of_a_gain_is_that_of_the_paired_test():
    one, two = np.array([90.0, 90.4, 91.0]), np.array([90.9, 92.0, 91.5])
    interval = ttest_rel(two, one).confidence_interval(0.95)
    assert paired(list(two - one)) == pytest.approx((interval.low, interval.high))
    assert paired([1.0, 1.0]) is None
    assert paired([1.0]) is None


def test_a_gain_is_taken_over_the_seeds_that_both_have(tmp_path):
    rows = {row.name: row for row in PAPERS["du2021"].of("table1")}
    constant, dynamic = rows["mnist-0.4-constant"], rows["mnist-0.4-dynamic"]
    for seed, value in ((0, 90.0), (1, 95.0), (2, 50.0)):
        results.save(tmp_path, constant, made(constant, seed, value))
    for seed, value in ((0, 90.5), (1, 95.7), (3, 99.0)):
        results.save(tmp_path, dynamic, made(dynamic, seed, value))
    page.write_page(tmp_path, tmp_path / "page.md")
    text = (tmp_path / "page.md").read_text()
    assert "| +0.60 | -0.67 to +1.87 | not decided |" in text
    assert (
        "- dynamic: no mean over three budgets yet; of 1 single settings it helps in none and hurts in none\n" in text
    )


def test_a_column_of_several_labels_has_them_in_its_cells_and_a_lower_bound_is_rounded_down():
    rows = [tiny(name, published={}) for name in ("a", "b")]
    lines = []
    for row, label in zip(rows, ("approximate", "certified"), strict=True):
        figures = {"gdp epsilon": Figure(value=0.83451, label=label), "least error sum": Figure(value=90.98765)}
        lines.append(Line(row=row, results=(replace(made(row, 0, 80.0), figures=figures),)))
    found = cells(lines)
    assert "CLT epsilon paper / ours" in found.names
    assert [row[1] for row in found.rows] == ["– / 0.8346 (approximate)", "– / 0.8346 (certified)"]
    assert found.rows[0][2] == "– / 90.98"
    assert lines[1].as_dict()["ours"]["gdp epsilon"]["label"] == "certified"


def test_a_row_that_computes_is_made_again_when_its_printed_figure_or_its_function_changes():
    row = tiny(kind="accounts", figures=partial(max, key=1))
    assert row.fingerprint == replace(row, notes=("said",)).fingerprint
    for changed in (
        replace(row, published={"accuracy": 91.0}),
        replace(row, figures=partial(max, key=2)),
        replace(row, figures=None),
    ):
        assert changed.fingerprint != row.fingerprint


def test_a_shorter_run_says_of_what_its_epsilons_are():
    row = tiny(published={"gdp epsilon": 0.83})
    for scale, planned, said in (("quick", 30, True), ("full-5", 5, True), ("full-99", 30, False), ("full", 30, False)):
        result = replace(made(row, 0, 80.0, scale=scale), planned=planned)
        assert any("not of this run" in note for note in cells([Line(row=row, results=(result,))]).notes) == said


def test_nothing_is_proven_where_something_was_read_off_the_records(tmp_path):
    recipe = {**tiny().recipe, "method": "noisy-sgd", "uncertified": True}
    row = tiny(task="tiny_task:task:non_private_preprocessing=counted", recipe=recipe)
    found, traced = ran([row, replace(row, name="traced", trace="raw_gradient_norm")], tmp_path)
    assert (found.certified, traced.certified) == (None, None)
    assert found.claimed > 0
    assert "none: unsound" in cells([Line(row=row, results=(found,))]).rows[0]
