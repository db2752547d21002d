"""Tuning: what is charged against an independent accountant, what is kept secret, and what a stop must not change."""

import json
import math
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

import tiny_task
from privet.accounting import Ledger
from privet.data.task import RMSE, Measure, Task
from privet.errors import InvalidValue, Unsupported
from privet.ledger.reading import read_ledger
from privet.training import metrics
from privet.training.progress import Progress
from privet.tuning import job
from privet.tuning.tune import tune

pytestmark = pytest.mark.usefixtures("few_checks")

GIVEN = {"task": "tiny_task:task", "epsilon": 3.0, "delta": 1e-3, "batch_size": 20, "steps": 4}
WHOLE = {**GIVEN, "batch_size": 180}  # every record in every step: quick to plan
RATES = {"lr": [0.5, 1.0]}
EACH_PLACE = Measure(name="accuracy", each=lambda outputs, targets: (outputs > 0) == targets[:, None])


class Stop(Progress):
    """Stops trial `trial` after its step `at`, once: as a crash does, or by a signal."""

    def __init__(self, *, trial: int, at: int, by_signal: bool = False) -> None:
        self.trial, self.at, self.by_signal, self.now = trial, at, by_signal, 0
        self.begun: list[tuple[int, int | None]] = []

    def watch(self, number: int, of: int | None, _: str) -> "Stop":
        self.now = number
        self.begun.append((number, of))
        return self

    def step(self, number: int, *_: object) -> None:
        if (self.now, number) == (self.trial, self.at):
            self.trial = -1
            if not self.by_signal:
                raise RuntimeError("a crash")
            signal.raise_signal(signal.SIGINT)


def numbered(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """So many runs, whatever the law."""
    monkeypatch.setattr(job, "draw_run_count", lambda *_: number)


def event_of(ledger: Ledger) -> dp_event.DpEvent:
    """The releases of a ledger in the words of another library."""
    parts = []
    for step, count in ledger:
        gaussian = dp_event.GaussianDpEvent(step.noise_multiplier)
        parts.append(dp_event.SelfComposedDpEvent(dp_event.PoissonSampledDpEvent(step.sample_rate, gaussian), count))
    return dp_event.ComposedDpEvent(parts)


# --- without a charge -------------------------------------------------------------------------------


class Unseen:
    """A held-out set that nobody may look at."""

    def __len__(self) -> int:
        return 50

    def __getitem__(self, _: object) -> object:
        raise AssertionError("the held-out set was looked at")


@pytest.mark.slow
def test_settings_are_chosen_on_training_records_alone_and_the_look_is_told(tmp_path):
    task = replace(tiny_task.task(), held_out=Unseen())
    found = tune({"lr": [0.5, 1e-6], "clipping_norm": [1.0]}, out=tmp_path / "a", seed=0, **{**WHOLE, "task": task})
    assert (found.runs, found.dataset_size, found.records) == (2, 180, 200)
    assert found.best == {"lr": 0.5, "clipping_norm": 1.0}
    assert found.guarantee is None
    assert "chosen by looking at 2 runs on these records, which is not charged" in found.says
    assert "not private" in found.scored
    assert found.score == max(t.score for t in found.trials)
    assert all(read_ledger(t.folder).ledger == found.run.plan.ledger() for t in found.trials)


@pytest.mark.slow
def test_what_costs_differently_may_be_tuned_at_one_budget(tmp_path):
    found = tune({"batch_size": [180, 90], "steps": [2, 4]}, out=tmp_path / "a", trials=3, **GIVEN)
    assert len({json.dumps(t.candidate) for t in found.trials}) == 3
    plans = [json.loads((t.folder / "plan.json").read_text()) for t in found.trials]
    assert all(2.9 < p["guarantee"]["epsilon"] <= 3.0 for p in plans)
    assert all(p["recipe"]["dataset_size"] == 180 for p in plans)


# --- the charge, by another library -----------------------------------------------------------------


@pytest.mark.slow
def test_a_fixed_number_is_charged_as_all_its_ledgers_together(tmp_path):
    found = tune({"lr": [0.5, 1.0, 2.0]}, out=tmp_path / "a", charge="fixed", **GIVEN)
    other = PLDAccountant(value_discretization_interval=1e-3)
    for trial in found.trials:  # a record that trains: every ledger; one that judges: the same steps, on its count
        other.compose(event_of(read_ledger(trial.folder).ledger))
    assert other.get_epsilon(1e-3) == pytest.approx(found.guarantee.epsilon, rel=1e-2)
    assert 2.99 < found.guarantee.epsilon <= 3.0
    assert (found.guarantee.label, found.guarantee.method) == ("certified", "pld, all of 3 runs")
    assert found.one_run.epsilon < found.guarantee.epsilon
    assert found.run.together == str(found.guarantee)


@pytest.mark.slow
@pytest.mark.parametrize("law", ["geometric", "poisson"])
def test_a_random_number_is_charged_by_the_theorem(tmp_path, monkeypatch, law):
    """Papernot, Steinke 2022, Theorems 2 (eta = 1) and 6, on another library's Rényi divergences of the ledger."""
    numbered(monkeypatch, 2)
    found = tune(RATES, out=tmp_path / "a", charge=law, trials=4, **WHOLE)
    orders = [1 + 0.1 * k for k in range(1, 200)]
    ledger = read_ledger(found.run.folder).ledger
    one = RdpAccountant(orders).compose(event_of(ledger))._rdp
    if law == "geometric":
        charge = min(2 * (1 - 1 / b) * r + 2 * math.log(4) / b for b, r in zip(orders, one, strict=True))
        whole = [r + charge + math.log(4) / (a - 1) for a, r in zip(orders, one, strict=True)]
    else:
        delta = PLDAccountant().compose(event_of(ledger)).get_delta
        whole = [
            r + 4 * delta(math.log1p(1 / (a - 1))) + math.log(4) / (a - 1) for a, r in zip(orders, one, strict=True)
        ]
    pairs = zip(orders, whole, strict=True)
    epsilon = min(r + math.log1p(-1 / a) - math.log(1e-3 * a) / (a - 1) for a, r in pairs)
    assert epsilon == pytest.approx(found.guarantee.epsilon, rel=1e-2)
    assert 2.99 < found.guarantee.epsilon <= 3.0
    assert found.guarantee.method == f"rdp, best of {law}(4) runs"


@pytest.mark.slow
def test_disjoint_parts_cost_the_dearest_and_their_choice_no_more(tmp_path):
    found = tune({"lr": [0.5], "batch_size": [10, 20]}, out=tmp_path / "a", charge="disjoint", **GIVEN)
    assert found.dataset_size == 200 // 3
    others = [PLDAccountant(value_discretization_interval=1e-3) for _ in found.trials]
    events = [event_of(read_ledger(t.folder).ledger) for t in found.trials]
    epsilons = [other.compose(event).get_epsilon(1e-3) for other, event in zip(others, events, strict=True)]
    assert max(epsilons) == pytest.approx(found.guarantee.epsilon, rel=1e-2)
    assert max(found.run.plan.selection_epsilon, found.guarantee.epsilon) <= 3.0
    assert [t.score for t in found.trials] == [None, None]
    assert not (tmp_path / "a" / "secret").exists()  # exact scores are gone
    assert not list((tmp_path / "a" / "trials").glob("*.json.*"))
    assert sorted(f.name for f in (tmp_path / "a" / "trials").iterdir()) == ["001", "002", "drawn.json"]


# --- secrets ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("charge", ["disjoint", "geometric"])
def test_what_nobody_may_see_is_readable_by_its_owner_alone(tmp_path, charge):
    stop = Stop(trial=1, at=1)
    with pytest.raises(RuntimeError):
        tune(RATES, out=tmp_path / "a", charge=charge, trials=2, watch=stop.watch, **{**GIVEN, "batch_size": 66})
    assert (tmp_path / "a" / "secret").stat().st_mode & 0o077 == 0


@pytest.mark.slow
def test_of_a_random_number_nothing_is_left_but_the_best(tmp_path, monkeypatch):
    seen = []
    for number in (1, 3):
        numbered(monkeypatch, number)
        out, lines = tmp_path / str(number), []
        found = tune(RATES, out=out, charge="geometric", trials=4, tell=lines.append, **WHOLE)
        assert (found.runs, found.trials) == (None, None)
        files = sorted(str(f.relative_to(out)) for f in out.rglob("*"))
        about = {key: value for key, value in found.as_dict().items() if key in ("runs", "law", "says", "trials")}
        asked = json.loads((out / "tuning.json").read_text())
        seen.append((lines, files, about, asked))
        assert len({f.stat().st_mtime_ns for f in out.rglob("*")}) == 1  # when files were written tells no more
    assert seen[0] == seen[1]  # nobody can tell one run from three
    assert not any("secret/" in name for name in seen[0][1])


def test_names_of_tensorboard_files_do_not_count_the_runs(tmp_path, monkeypatch):
    """Its writers are numbered within a process: events.out.tfevents.<time>.<host>.<pid>.<number>."""
    made = []

    class Board:
        def __init__(self, folder: Path) -> None:
            folder.mkdir(parents=True)
            (folder / f"events.out.tfevents.1.host.1.{len(made)}").touch()
            made.append(folder)

        def add_scalar(self, *_: object) -> None: ...

        def close(self) -> None: ...

    monkeypatch.setattr(metrics, "_open_board", Board)
    numbered(monkeypatch, 2)
    tune(RATES, out=tmp_path / "a", charge="geometric", trials=4, **WHOLE)
    assert len(made) == 2
    assert not list((tmp_path / "a").rglob("events.*"))


def test_no_run_at_all_is_an_outcome_too(tmp_path, monkeypatch):
    numbered(monkeypatch, 0)
    for _ in range(2):
        found = tune(RATES, out=tmp_path / "a", charge="poisson", trials=2, **WHOLE)
        assert (found.best, found.run, found.score) == (None, None, None)
        assert "a model fixed beforehand" in found.says
        assert found.guarantee.epsilon <= 3.0
        numbered(monkeypatch, 5)  # over is over


# --- stops ------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("charge", "by_signal"), [(None, True), ("fixed", True), ("fixed", False)])
def test_a_stopped_tuning_goes_on_and_spends_no_more(tmp_path, charge, by_signal):
    out = tmp_path / "a"
    given = {**WHOLE, "charge": charge, "out": out, "training": {"steps_per_line": 1}}
    stop = Stop(trial=2, at=2, by_signal=by_signal)
    with pytest.raises(KeyboardInterrupt if by_signal else RuntimeError):
        tune(RATES, watch=stop.watch, **given)
    before = {f: f.read_bytes() for f in (out / "trials").glob("*.json")}
    assert len(before) == 2  # what was drawn, and the first score
    found = tune(RATES, watch=stop.watch, **given)
    assert all(f.read_bytes() == content for f, content in before.items())
    assert stop.begun == [(1, 2), (2, 2), (1, 2), (2, 2)]
    assert all(read_ledger(t.folder).ledger == found.run.plan.ledger() for t in found.trials)
    events = found.trials[1].folder.joinpath("metrics.jsonl").read_text().splitlines()
    assert [json.loads(line).get("weights_of") for line in events] == [2 if by_signal else 0, None]  # lost, charged


@pytest.mark.slow
@pytest.mark.parametrize("by_signal", [False, True])
def test_a_secret_number_is_drawn_once_and_its_runs_are_alike(tmp_path, monkeypatch, by_signal):
    numbered(monkeypatch, 3)
    out = tmp_path / "a"
    given = {**WHOLE, "charge": "geometric", "trials": 4, "out": out, "training": {"steps_per_line": 1}}
    stop = Stop(trial=2, at=2, by_signal=by_signal)
    with pytest.raises(KeyboardInterrupt if by_signal else RuntimeError):
        tune(RATES, watch=stop.watch, **given)
    drawn = (out / "secret" / "drawn.json").read_bytes()
    assert (out / "secret").stat().st_mode & 0o077 == 0
    (out / "secret" / "002.lost").mkdir()  # as if a crash had come while another lost run was taken away
    numbered(monkeypatch, 30)
    stop.trial, stop.at, stop.by_signal = 3, 1, False
    with pytest.raises(RuntimeError):
        tune(RATES, watch=stop.watch, **given)
    assert (out / "secret" / "drawn.json").read_bytes() == drawn
    lines = (out / "secret" / "002" / "metrics.jsonl").read_text()
    assert ("resumed" in lines) == by_signal  # after a signal no step is lost; after a crash the run is made anew
    found = tune(RATES, watch=stop.watch, **given)
    assert max(number for number, _ in stop.begun) == 3
    assert read_ledger(found.run.folder).ledger == found.run.plan.ledger()


@pytest.mark.slow
def test_a_crash_at_the_very_end_changes_neither_the_choice_nor_the_result(tmp_path, monkeypatch):
    numbered(monkeypatch, 3)
    given = {**WHOLE, "charge": "geometric", "trials": 4, "out": tmp_path / "a"}
    from privet.tuning import tune as module

    write = module.tuning_folder.write

    def torn(file: Path, content: object) -> None:
        if file.name == "result.json":
            raise RuntimeError("a crash")
        write(file, content)

    monkeypatch.setattr(module.tuning_folder, "write", torn)
    with pytest.raises(RuntimeError):
        tune(RATES, **given)
    weights = (tmp_path / "a" / "run" / "checkpoint.safetensors").read_bytes()
    monkeypatch.setattr(module.tuning_folder, "write", write)
    stop = Stop(trial=-1, at=0)
    found = tune(RATES, watch=stop.watch, **given)
    assert (found.run.folder / "checkpoint.safetensors").read_bytes() == weights
    assert not (tmp_path / "a" / "secret").exists()


def test_what_was_drawn_or_tried_cannot_be_taken_away(tmp_path):
    out = tmp_path / "a"
    given = {**WHOLE, "charge": "fixed", "out": out}
    stop = Stop(trial=2, at=2)
    with pytest.raises(RuntimeError):
        tune(RATES, watch=stop.watch, **given)
    (out / "trials" / "007").mkdir()
    with pytest.raises(InvalidValue, match="no trial that was drawn"):
        tune(RATES, **given)
    (out / "trials" / "007").rmdir()
    drawn = (out / "trials" / "drawn.json").read_text()
    (out / "trials" / "drawn.json").write_text(drawn.replace("0.5", "0.6"))
    with pytest.raises(InvalidValue, match="not as it was written"):
        tune(RATES, **given)
    (out / "trials" / "drawn.json").unlink()
    with pytest.raises(InvalidValue, match="Another draw would be another tuning"):
        tune(RATES, **given)
    (out / "trials" / "drawn.json").write_text(drawn)
    (out / "trials" / "002" / "run.json").unlink()
    with pytest.raises(InvalidValue, match="They are spent, and cannot be made again"):
        tune(RATES, **given)


def test_a_folder_keeps_to_one_tuning(tmp_path):
    given = {**WHOLE, "out": tmp_path / "a"}
    tune(RATES, **given)
    with pytest.raises(InvalidValue, match="holds another tuning: its space is"):
        tune({"lr": [0.5]}, **given)
    with pytest.raises(InvalidValue, match="holds another tuning: its charge is null, not"):
        tune(RATES, charge="fixed", **given)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "letter.txt").write_text("")
    with pytest.raises(InvalidValue, match="holds other files"):
        tune(RATES, **{**given, "out": tmp_path / "b"})


@pytest.mark.slow
def test_a_seed_makes_it_reproducible_and_takes_the_guarantee_away(tmp_path):
    given = {**WHOLE, "charge": "geometric", "trials": 2, "seed": 3}
    first, second = (tune({"lr": "0.1..1"}, out=tmp_path / name, **given) for name in "ab")
    assert (first.best, first.score) == (second.best, second.score)
    weights = [
        torch.nn.utils.parameters_to_vector(f.run.network(tiny_task.task()).parameters()) for f in (first, second)
    ]
    assert torch.equal(*weights)
    assert first.guarantee.label == "claimed"
    assert "not private" in first.guarantee.method
    assert first.as_dict()["private"] is False


# --- judges -----------------------------------------------------------------------------------------


def other_points() -> Task:
    """Public points of the same kind."""
    return replace(tiny_task.task(60), name="others")


def test_public_records_judge_for_nothing_and_all_records_train(tmp_path):
    found = tune(RATES, out=tmp_path / "a", charge="fixed", public=other_points(), **{**GIVEN, "batch_size": 200})
    assert (found.dataset_size, found.spread) == (200, None)
    assert found.scored == "60 public records of others"
    assert (found.score * 60) == pytest.approx(round(found.score * 60))  # exact
    assert found.guarantee.label == "certified"


def test_private_judges_have_noise_on_their_count(tmp_path):
    found = tune(RATES, out=tmp_path / "a", charge="fixed", **{**WHOLE, "delta": None})
    assert found.guarantee.delta == 1 / (10 * 200)  # all records are protected, those that judge too
    assert found.spread > 0
    assert "with noise, charged as a run is" in found.scored
    assert all(t.score * 20 != round(t.score * 20) for t in found.trials)


# --- what would void the guarantee ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"charge": "fixed", "space": {"batch_size": [10, 20]}}, "is for trials that cost the same"),
        ({"charge": "geometric", "trials": 3, "space": {"rho_noise": [1, 2]}, "method": "growing-mu"}, "cost the same"),
        ({"charge": "fixed", "training": {"stop_at": "accuracy=0.9"}}, "decides on the held-out set"),
        ({"charge": "fixed", "training": {"keep": "best"}}, "decides on the held-out set"),
        ({"charge": "fixed", "space": {"scheduler": ["plateau"]}}, "reads the held-out set"),
        ({"charge": "geometric"}, "needs the mean number of runs"),
        ({"charge": "geometric", "trials": 0.5}, "must be >= 1"),
        ({"charge": "poisson", "trials": 2, "accountant": "pld"}, "has no theorem"),
        ({"charge": "best"}, "charge='best' must be one of"),
        ({"charge": "disjoint", "public": other_points()}, "chooses on a part of the examples"),
        ({"charge": "fixed", "trials": 1.5}, "trials=1.5"),
        ({"trials": 3}, "more than the 2 candidates"),
        ({"trial_count_distribution": "fixed"}, "set by the tuning itself"),
        ({"uncertified": True}, "cannot be tuned"),
        ({"solve": "steps"}, "compared at one budget"),
        ({"dataset_size": 60000}, "is not that of task='tiny', 200"),
        ({"public": "tiny_task:task"}, "is the task itself"),
        ({"public": replace(other_points(), measure=RMSE)}, "is judged by rmse"),
        (
            {"public": replace(other_points(), train=(torch.ones(5, 3), torch.zeros(5).long()))},
            "does not fit the network",
        ),
        ({"seed": -1}, "seed=-1"),
        ({"space": {"lr": [-1.0]}}, "training.lr=-1.0"),
        ({"space": {"optimizer": ["sgd", "nonsense"]}}, "optimizer='nonsense' is not known"),
        ({"epochs": 2}, "They say the same"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_spent(tmp_path, given, words):
    asked = {"space": RATES, **WHOLE, **given}
    with pytest.raises(InvalidValue) as error:
        tune(asked.pop("space"), out=tmp_path / "a", **asked)
    assert words in str(error.value)
    assert "\n" not in str(error.value)
    assert not list(tmp_path.rglob("ledger.jsonl"))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"adjacency": "add-remove"}, "their number is public"),
        ({"unit": "user"}, "belongs to another person"),
        ({"charge": "fixed", "adjacency": "replace-one"}, "adjacency='replace-one'"),
        ({"charge": "fixed", "sampling": "fixed-size"}, "with Poisson sampling only"),
        ({"charge": "fixed", "task": replace(tiny_task.task(), measure=RMSE)}, "can move by any amount"),
        ({"charge": "fixed", "task": replace(tiny_task.task(), measure=EACH_PLACE)}, "one value for each example"),
    ],
)
def test_what_has_no_proof_is_refused(tmp_path, given, words):
    with pytest.raises(Unsupported) as error:
        tune(RATES, out=tmp_path / "a", **{**WHOLE, **given})
    assert words in str(error.value)
    assert not list(tmp_path.rglob("ledger.jsonl"))
