"""Whole runs: what is written down is public, a stop loses nothing, and every epsilon says what it is."""

import errno
import json
import re
import signal
from dataclasses import replace
from functools import cache
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace

import pytest
import safetensors.torch
import torch
from torch import nn

from privet import Run, Training, plan, train
from privet.accounting import Guarantee
from privet.attacks.attack import guarantee_text, resolve_sources
from privet.attacks.membership import membership_inference
from privet.auditing import audit
from privet.auditing.audit import audit_ledger
from privet.auditing.one_run import one_run
from privet.data.task import ACCURACY, Task
from privet.errors import InvalidValue, Unsupported
from privet.federated.federate import federate
from privet.ledger.file import LedgerFile
from privet.ledger.reading import read_ledger
from privet.training import checkpoint, loop, metrics
from privet.training.evaluation import Scores, evaluate
from privet.training.progress import Progress
from privet.training.resume import resume, save
from privet.training.train import resume_run
from privet.tuning.tune import tune
from tiny_task import SIZE, Net, task

pytestmark = pytest.mark.usefixtures("few_checks")

PUBLIC = {
    "step", "epoch", "held_out_loss", "held_out_accuracy", "best", "epsilon", "delta", "label", "private", "lr",
    "seconds", "examples_per_second",
}  # fmt: skip


@cache
def planned(steps: int = 12):
    """Full batches and next to no noise, so that two runs can be compared."""
    return plan(delta=1e-3, dataset_size=SIZE, batch_size=SIZE, steps=steps, noise_multiplier=1e-7, solve="epsilon")


@cache
def private(steps: int = 20):
    return plan(epsilon=3.0, delta=1e-3, dataset_size=SIZE, batch_size=20, steps=steps)


def with_table(**training):
    """A plan whose recipe has a [training] table."""
    return plan(epsilon=3.0, delta=1e-3, dataset_size=SIZE, batch_size=20, steps=20, training=training)


class Interrupting(Progress):
    """Asks the process to end, as Ctrl-C does, once so many steps are over."""

    def __init__(self, after: int, number: int = signal.SIGINT) -> None:
        self.after, self.number = after, number

    def step(self, number, spent, speed):
        if number == self.after:
            signal.raise_signal(self.number)


class Dying(Progress):
    """Fails in the midst, as if the process had been killed: nothing more is saved."""

    def __init__(self, after: int) -> None:
        self.after = after

    def step(self, number, spent, speed):
        if number == self.after:
            raise MemoryError("killed")


def weights(run: Run) -> dict[str, torch.Tensor]:
    return run.network().state_dict()


def same(one: Run, other: Run, tolerance: float = 1e-4) -> bool:
    pairs = zip(weights(one).values(), weights(other).values(), strict=True)
    return all(torch.allclose(a, b, atol=tolerance) for a, b in pairs)


def evaluations(run: Run) -> list[dict]:
    return metrics.evaluation_lines(run.metrics)


# --- a run ------------------------------------------------------------------------------------------


def test_a_run_spends_its_plan_and_is_as_good_as_it_says(tmp_path):
    p = private()
    run = train(p, "tiny_task:task", out=tmp_path / "a", lr=0.5)
    assert (run.steps, run.end, run.is_over, run.noise_is_secret) == (20, "complete", True, True)
    assert run.guarantee == run.spent
    assert (run.guarantee.label, run.guarantee.epsilon) == ("certified", p.guarantee.epsilon)
    found = evaluate(run.network(), task())
    assert run.scores["held_out_accuracy"] == found.measure
    assert run.scores["held_out_loss"] == pytest.approx(found.loss, rel=1e-5)
    assert run.evaluation == "50 made-up points"


def test_metrics_hold_public_figures_only(tmp_path):
    run = train(private(), "tiny_task:task", out=tmp_path / "a")
    lines = evaluations(run)
    assert [line["step"] for line in lines] == [10, 20]  # epochs of 200 / 20 steps
    assert all(set(line) == PUBLIC for line in lines)
    assert all(line["label"] == "certified" and line["private"] for line in lines)
    assert lines[-1]["epsilon"] == run.guarantee.epsilon
    assert 0 < lines[0]["epsilon"] < lines[-1]["epsilon"]


def test_the_speed_is_of_planned_examples(tmp_path, monkeypatch):
    """By a clock on which every step takes a quarter of a second."""

    class Ticking(Progress):
        now = 100.0

        def step(self, number, spent, speed):
            self.now += 0.25

    clock = Ticking()
    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=lambda: clock.now))
    run = train(private(), "tiny_task:task", out=tmp_path / "a", watcher=clock)
    assert [(line["seconds"], line["examples_per_second"]) for line in evaluations(run)] == [(2.5, 80.0), (5.0, 80.0)]


def test_what_comes_from_training_records_is_asked_for_and_named_raw(tmp_path):
    run = train(private(), "tiny_task:task", out=tmp_path / "a", show_private=True)
    lines = evaluations(run)
    assert all(set(line) - PUBLIC == {"raw_train_loss", "raw_train_accuracy", "not_private"} for line in lines)
    assert not any(line["private"] for line in lines)
    assert all(0 <= line["raw_train_accuracy"] <= 1 for line in lines)


def test_settings_of_the_plan_hold_and_what_is_given_wins(tmp_path):
    p = with_table(task="digits", lr=0.25, optimizer="adagrad")
    run = train(p, "tiny_task:task", out=tmp_path / "a")
    assert (run.settings.task, run.settings.lr, run.settings.optimizer) == ("tiny_task:task", 0.25, "adagrad")
    assert run.about["changed"] == {"task": ["digits", "tiny_task:task"]}
    assert evaluations(run)[0]["lr"] == 0.25


def test_a_task_and_a_network_of_ones_own(tmp_path):
    own = replace(task(), name="mine", model=lambda: nn.Linear(4, 2))
    run = train(private(), own, out=tmp_path / "a")
    with pytest.raises(InvalidValue, match="was given as an object"):
        Run.load(tmp_path / "a").network()
    assert evaluate(run.network(own), own).measure == run.scores["held_out_accuracy"]


def test_facts_that_a_file_cannot_hold_are_the_tasks(tmp_path):
    own = replace(task(), facts={"shape": (4,), "words": {1, 2}})
    run = train(private(3), own, out=tmp_path / "a")
    assert run.about["network"] is None
    assert isinstance(run.network(own), nn.Module)


def test_another_network_by_its_address(tmp_path):
    run = train(private(5), "tiny_task:task", out=tmp_path / "a", model="tiny_task:Net:width=3")
    assert run.network().body[0].out_features == 3


def test_first_weights_are_fresh_and_can_be_made_again(tmp_path):
    made = [train(planned(1), "tiny_task:task", out=tmp_path / name, lr=1e-12) for name in "ab"]
    assert not same(*made, tolerance=1e-3)
    assert made[0].about["weights_seed"] != made[1].about["weights_seed"]


def test_evaluating_leaves_model_and_generators_as_they_were():
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))
    model[1].eval()
    state = torch.random.get_rng_state()
    one, other = evaluate(model, task()), evaluate(model, task(), rows=7)
    assert one.loss == pytest.approx(other.loss, rel=1e-6)
    assert one.measure == other.measure
    assert [module.training for module in model.modules()] == [True, True, False, True]
    assert torch.equal(state, torch.random.get_rng_state())
    assert all(p.grad is None for p in model.parameters())


# --- stopping and going on --------------------------------------------------------------------------

VARIED = {"optimizer": "adam", "lr": 0.05, "scheduler": "cosine", "ema_decay": 0.9, "evaluate_every": 4}


def both(tmp_path, p, watcher, **settings) -> tuple[Run, Run]:
    """(unbroken, interrupted and taken up), from the same first weights: with others, Adam may enlarge the noise."""
    from unittest import mock

    with mock.patch("secrets.randbits", return_value=7):
        whole = train(p, "tiny_task:task", out=tmp_path / "whole", **settings)
        stopped = train(p, "tiny_task:task", out=tmp_path / "split", watcher=watcher, **settings)
    assert whole.about["weights_seed"] == stopped.about["weights_seed"] == 7
    assert not stopped.is_over
    return whole, stopped


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_was_stopped_ends_like_one_that_was_not(tmp_path, number):
    whole, stopped = both(tmp_path, planned(), Interrupting(5, number), **VARIED)
    assert stopped.steps == 5
    ended = resume_run(tmp_path / "split")
    assert (ended.end, ended.steps) == ("complete", 12)
    assert same(whole, ended)
    assert [line["step"] for line in evaluations(ended)] == [line["step"] for line in evaluations(whole)]
    lrs = [[line["lr"] for line in evaluations(run)] for run in (whole, ended)]
    assert lrs[0] == pytest.approx(lrs[1])
    assert ended.metrics[-1]["seconds"] > stopped.metrics[-1]["seconds"]


def test_a_clean_stop_does_the_steps_that_it_has_reserved(tmp_path):
    _, stopped = both(tmp_path, planned(), Interrupting(4), steps_per_line=3, evaluate_every=50)
    assert stopped.steps == 6
    assert checkpoint.peek(tmp_path / "split").extra["step"] == 6
    assert resume_run(tmp_path / "split").steps == 12


def test_a_crash_loses_steps_that_stay_charged(tmp_path):
    with pytest.raises(MemoryError):
        train(planned(), "tiny_task:task", out=tmp_path / "a", watcher=Dying(7), save_every=4, evaluate_every=2)
    before = Run.load(tmp_path / "a")
    assert (before.steps, before.is_over) == (7, False)
    assert [line["step"] for line in before.metrics] == [2, 4, 6]
    run = resume_run(tmp_path / "a")
    assert read_ledger(tmp_path / "a").ledger.steps == 12
    steps = [(line["step"], line.get("event")) for line in run.metrics]
    assert steps == [(2, None), (4, None), (7, "resumed"), (8, None), (10, None), (12, None)]  # 6 was of lost weights


def test_a_crash_before_the_first_checkpoint_starts_from_the_same_weights(tmp_path):
    with pytest.raises(MemoryError):
        train(planned(), "tiny_task:task", out=tmp_path / "a", watcher=Dying(2), lr=1e-12)
    run = resume_run(tmp_path / "a")
    whole = train(planned(), "tiny_task:task", out=tmp_path / "b", seed=run.about["weights_seed"], lr=1e-12)
    assert same(run, whole, tolerance=1e-6)


def test_a_run_goes_on_from_what_a_loop_of_ones_own_has_saved(tmp_path):
    with pytest.raises(MemoryError):
        train(planned(), "tiny_task:task", out=tmp_path / "a", watcher=Dying(5), evaluate_every=2)
    model = task().network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with resume(model, optimizer, task().train, Run.load(tmp_path / "a").plan, out=tmp_path / "a") as training:
        for x, y in training:
            training.step(nn.functional.cross_entropy(model(x), y, reduction="none"))
            break
        save(training)
    run = resume_run(tmp_path / "a")
    assert (run.end, run.steps) == ("complete", 12)


def test_a_run_that_is_over_is_given_back(tmp_path):
    train(planned(3), "tiny_task:task", out=tmp_path / "a")
    before = (tmp_path / "a" / "ledger.jsonl").read_bytes(), (tmp_path / "a" / "metrics.jsonl").read_bytes()
    assert resume_run(tmp_path / "a").end == "complete"
    assert before == ((tmp_path / "a" / "ledger.jsonl").read_bytes(), (tmp_path / "a" / "metrics.jsonl").read_bytes())


def test_a_run_that_was_killed_at_its_very_end_is_ended(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(loop.TrainingLoop, "_finish", lambda self: (_ for _ in ()).throw(MemoryError("killed")))
        with pytest.raises(MemoryError):
            train(planned(4), "tiny_task:task", out=tmp_path / "a", save_every=1)
    run = resume_run(tmp_path / "a")
    assert (run.end, run.steps) == ("complete", 4)
    assert evaluations(run)[-1]["step"] == 4


def test_a_second_signal_ends_it_at_once(tmp_path):
    class Impatient(Progress):
        def step(self, number, spent, speed):
            if number == 2:
                signal.raise_signal(signal.SIGINT)
                signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(planned(), "tiny_task:task", out=tmp_path / "a", watcher=Impatient())
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert Run.load(tmp_path / "a").steps == 2
    assert resume_run(tmp_path / "a").steps == 12


def test_shuffled_epochs_are_not_left_in_the_midst(tmp_path):
    p = plan(
        delta=1e-3,
        dataset_size=SIZE,
        batch_size=50,
        steps=12,
        noise_multiplier=2.0,
        solve="epsilon",
        sampling="shuffled",
    )
    stopped = train(p, "tiny_task:task", out=tmp_path / "a", watcher=Interrupting(5))
    assert stopped.steps == 8
    assert resume_run(tmp_path / "a").steps == 12


# --- early stopping, choice of weights --------------------------------------------------------------


def test_a_target_stops_it_and_the_plans_epsilon_is_what_holds(tmp_path):
    p = private(steps=60)
    run = train(p, "tiny_task:task", out=tmp_path / "a", stop_at="accuracy=0.1", evaluate_every=2, lr=0.5)
    assert run.is_over
    assert run.steps < 60  # first weights are seldom so bad, and never stay so
    assert run.end == "accuracy 0.1 was reached"
    assert (run.guarantee.label, run.guarantee.epsilon) == ("certified", p.guarantee.epsilon)
    assert run.spent.label == "claimed"
    assert run.spent.epsilon < p.guarantee.epsilon
    assert "outputs decided" in run.spent.method
    assert resume_run(tmp_path / "a").steps == run.steps


def test_patience_ends(tmp_path):
    run = train(planned(30), "tiny_task:task", out=tmp_path / "a", lr=1e-12, evaluate_every=1, patience=3)
    assert run.steps == 4  # the first is the best, then three that are not better
    assert "not better in 3" in run.end


def test_patience_is_remembered(tmp_path):
    settings = {"lr": 1e-12, "evaluate_every": 1, "patience": 5}
    train(planned(30), "tiny_task:task", out=tmp_path / "a", watcher=Interrupting(3), **settings)
    assert resume_run(tmp_path / "a").steps == 6


def test_the_best_weights_are_kept_and_scored(tmp_path):
    settings = {"evaluate_every": 1, "keep": "best", "optimizer": "sgd", "momentum": 0}
    run = train(
        planned(15), "tiny_task:task", out=tmp_path / "a", scheduler="exponential:gamma=4,unit=step", **settings
    )
    lines = evaluations(run)
    top = max(line["held_out_accuracy"] for line in lines)
    assert run.scores["held_out_accuracy"] == top
    assert evaluate(run.network(), task()).measure == top
    assert checkpoint.peek(tmp_path / "a" / "best").extra["step"] == run.scores["step"]


def test_the_best_weights_survive_a_crash_with_their_scores(tmp_path):
    settings = {"evaluate_every": 1, "keep": "best", "momentum": 0, "scheduler": "exponential:gamma=4,unit=step"}
    with pytest.raises(MemoryError):
        train(planned(15), "tiny_task:task", out=tmp_path / "a", watcher=Dying(6), save_every=2, **settings)
    lost = Run.load(tmp_path / "a").scores
    run = resume_run(tmp_path / "a")
    assert run.scores["held_out_accuracy"] >= lost["held_out_accuracy"]
    assert evaluate(run.network(), task()).measure == run.scores["held_out_accuracy"]


def test_weights_that_are_worse_never_replace_the_best_after_a_crash(tmp_path, monkeypatch):
    """The best were kept after the last checkpoint, which does not know of them."""
    values = iter([0.5, 0.9, 0.6, 0.7])
    monkeypatch.setattr(
        loop, "evaluate",
        lambda *_, **__: Scores(loss=1.0, measure=next(values), name="accuracy", higher_is_better=True),
    )  # fmt: skip
    settings = {"evaluate_every": 2, "save_every": 3, "keep": "best"}
    with pytest.raises(MemoryError):  # 0.5 at step 2, a checkpoint at 3, 0.9 at 4
        train(planned(8), "tiny_task:task", out=tmp_path / "a", watcher=Dying(5), **settings)
    run = resume_run(tmp_path / "a")
    assert [line["held_out_accuracy"] for line in evaluations(run)] == [0.5, 0.6, 0.7]
    assert (run.scores["step"], run.scores["held_out_accuracy"]) == (4, 0.9)


def test_what_lies_beside_weights_has_nothing_raw_and_no_epsilon_of_a_moment(tmp_path):
    """A file of weights is given away; and which weights are the best was decided by all that came later."""
    run = train(
        private(), "tiny_task:task", out=tmp_path / "a", keep="best", show_private=True, evaluate_every=5, lr=1e-6
    )
    assert "raw_train_loss" in evaluations(run)[0]
    extra = checkpoint.peek(tmp_path / "a" / "best").extra
    assert extra == run.scores
    assert set(extra) == PUBLIC - {"epsilon", "delta", "label"}


def test_the_scores_of_a_run_that_outputs_stopped_claim_no_epsilon(tmp_path):
    run = train(planned(30), "tiny_task:task", out=tmp_path / "a", stop_at="accuracy=0.1", evaluate_every=2)
    assert (run.is_over, run.spent.label) == (True, "claimed")
    assert not {"epsilon", "delta", "label"} & set(run.scores)


@pytest.mark.parametrize(
    "change", [{"name": "other"}, {"measure": replace(ACCURACY, name="hits")}, {"evaluation": "x"}]
)
def test_a_run_goes_on_with_the_task_that_it_began_with(tmp_path, change):
    with pytest.raises(MemoryError):
        train(planned(), task(), out=tmp_path / "a", watcher=Dying(5), evaluate_every=2, keep="best")
    with pytest.raises(InvalidValue, match=r"the run in .* began with[, ]+'(tiny|50 made-up points)'"):
        resume_run(tmp_path / "a", task=replace(task(), **change))
    assert resume_run(tmp_path / "a", task=task()).end == "complete"


def test_a_measure_that_the_task_does_not_have_is_refused_first(tmp_path):
    with pytest.raises(InvalidValue, match="stop_at='rmse' must be one of accuracy, loss"):
        train(private(), "tiny_task:task", out=tmp_path / "a", stop_at="rmse=1")
    assert list(tmp_path.iterdir()) == []


# --- what has no guarantee --------------------------------------------------------------------------


def test_a_seeded_run_is_reproducible_and_says_that_it_is_not_private(tmp_path):
    runs = [train(private(), "tiny_task:task", out=tmp_path / name, seed=7) for name in "ab"]
    assert same(*runs, tolerance=0.0)
    for run in runs:
        assert not run.noise_is_secret
        assert run.guarantee.label == "claimed"
        assert "not private" in str(run.guarantee)
        assert all(line["label"] == "claimed" and line["private"] is False for line in evaluations(run))
    assert not same(runs[0], train(private(), "tiny_task:task", out=tmp_path / "c", seed=2**70), tolerance=1e-3)


def test_a_seeded_run_that_goes_on_does_not_replay(tmp_path):
    drawn = []
    from privet.noise.randomness import Randomness

    before = Randomness._entropy

    def noted(self, use, words):
        found = before(self, use, words)
        drawn.append((use, found[:4].tobytes()))
        return found

    Randomness._entropy = noted
    try:
        train(private(), "tiny_task:task", out=tmp_path / "a", seed=7, watcher=Interrupting(6))
        stopped = len(drawn)
        resume_run(tmp_path / "a")
    finally:
        Randomness._entropy = before
    assert stopped
    assert len(drawn) > stopped
    assert len(set(drawn)) == len(drawn)


def test_an_unsound_rule_trains_only_if_asked_and_guarantees_nothing(tmp_path):
    p = plan(
        epsilon=3.0, delta=1e-3, dataset_size=SIZE, batch_size=20, steps=10, method="auto-linear", uncertified=True
    )
    with pytest.raises(Unsupported, match="--uncertified"):
        train(p, "tiny_task:task", out=tmp_path / "a")
    run = train(p, "tiny_task:task", out=tmp_path / "a", uncertified=True)
    assert "guarantee: none" in run.guarantee.method
    assert {line["label"] for line in evaluations(run)} == {"claimed"}


COUNTED = "vocabulary=counted, the most frequent words"


def test_a_task_that_read_something_off_its_records_trains_only_if_asked_and_guarantees_nothing(tmp_path):
    counted, p = task(non_private_preprocessing=COUNTED), private()
    model = counted.network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    clients = plan(epsilon=4.0, delta=1e-2, dataset_size=20, batch_size=5, steps=3, unit="client")
    given = {"epsilon": 3.0, "delta": 1e-3, "batch_size": 20, "steps": 4}
    for refused in (
        lambda: train(p, counted, out=tmp_path / "a"),
        lambda: Training(model, optimizer, counted.train, p, out=tmp_path / "a", non_private_preprocessing=COUNTED),
        lambda: tune({"lr": [0.1, 0.5]}, out=tmp_path / "a", task=counted, **given),
        lambda: federate(clients, counted, out=tmp_path / "a", clients=20),
        lambda: membership_inference("noisy-sgd", task=counted),
        lambda: audit(p, kinds=["one-run"], task=counted),
        lambda: one_run(p, kind="examples", canaries=10, task=counted),
        lambda: resolve_sources(p, counted, None, uncertified=False),
    ):
        with pytest.raises(Unsupported, match=r"vocabulary=counted.* without noise\. No epsilon covers it\. Leave"):
            refused()
    assert list(tmp_path.iterdir()) == []
    run = train(p, counted, out=tmp_path / "a", uncertified=True, watcher=Interrupting(6))
    assert run.steps < 20
    run = resume_run(tmp_path / "a", task=counted)
    assert (run.end, run.non_private_preprocessing, read_ledger(run.folder).header.sound) == (
        "complete",
        COUNTED,
        False,
    )
    for found in (run.guarantee, run.spent):
        assert (found.label, found.epsilon_lower) == ("claimed", None)
        assert f"guarantee: none, {COUNTED}" in found.method
    assert {line["label"] for line in evaluations(run)} == {"claimed"}
    assert audit_ledger(run).verdict == "inconclusive"
    assert audit(run, kinds=["replay"]).claim == str(run.guarantee)
    assert guarantee_text(resolve_sources(run, counted, None, uncertified=False)[1]["run"]) == str(run.guarantee)
    file = run.folder / "run.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"non_private_preprocessing": ""}))
    with pytest.raises(InvalidValue, match="What holds could not be told"):
        Run.load(run.folder)


@pytest.mark.parametrize("note", [None, True, "two\nlines"])
def test_what_was_read_off_is_said_in_one_line(note):
    own = task()
    model = own.network()
    for refused in (
        lambda: task(non_private_preprocessing=note),
        lambda: Training(
            model, torch.optim.SGD(model.parameters()), own.train, private(), non_private_preprocessing=note
        ),
    ):
        with pytest.raises(InvalidValue, match=r"non_private_preprocessing=.* must be one line of text"):
            refused()


# --- fine-tuning ------------------------------------------------------------------------------------


@pytest.fixture
def body(tmp_path):
    """The file of a network's weights."""
    safetensors.torch.save_file(Net().state_dict(), tmp_path / "body.safetensors")
    return tmp_path / "body.safetensors"


def test_first_weights_from_a_file_of_which_only_the_chosen_ones_learn(tmp_path, body):
    run = train(private(), "tiny_task:task", out=tmp_path / "a", weights=str(body), train=["body.2.*"], lr=0.5)
    first, last = safetensors.torch.load_file(body), weights(run)
    assert all(torch.equal(first[name], last[name]) for name in ("body.0.weight", "body.0.bias"))
    assert not torch.equal(first["body.2.weight"], last["body.2.weight"])
    assert [name for name, p in run.network().named_parameters() if p.requires_grad] == ["body.2.weight", "body.2.bias"]
    assert run.about["weights"] == sha256(body.read_bytes()).hexdigest()
    assert run.guarantee.label == "certified"
    wide = {"model": "tiny_task:Net:width=6", "fresh": ["body.2.*"], "train": ["body.2.*"]}
    other = train(private(), "tiny_task:task", out=tmp_path / "b", weights=str(body), lr=1e-9, **wide)
    assert not torch.allclose(first["body.2.weight"], weights(other)["body.2.weight"], atol=1e-3)  # made anew


def test_a_fine_tuned_run_goes_on_without_the_file_once_it_has_a_checkpoint(tmp_path, body):
    given = {"weights": str(body), "train": ["body.2.*"], "evaluate_every": 2}
    with pytest.raises(MemoryError):
        train(planned(), "tiny_task:task", out=tmp_path / "a", watcher=Dying(5), **given)
    first = safetensors.torch.load_file(body)
    body.unlink()
    run = resume_run(tmp_path / "a")
    assert run.end == "complete"
    assert torch.equal(weights(run)["body.0.weight"], first["body.0.weight"])


def test_what_a_network_freezes_itself_stays_frozen_with_weights_from_a_file(tmp_path, body):
    given = {"model": "tiny_task:Half", "weights": str(body), "evaluate_every": 2, "lr": 0.5}
    with pytest.raises(MemoryError):
        train(planned(), "tiny_task:task", out=tmp_path / "a", watcher=Dying(5), **given)
    run = resume_run(tmp_path / "a")
    first, last = safetensors.torch.load_file(body), weights(run)
    assert torch.equal(last["body.0.weight"], first["body.0.weight"])
    assert not torch.equal(last["body.2.weight"], first["body.2.weight"])


def test_without_a_checkpoint_it_needs_the_same_file(tmp_path, body):
    with pytest.raises(MemoryError):
        train(
            planned(),
            "tiny_task:task",
            out=tmp_path / "a",
            watcher=Dying(2),
            weights=str(body),
            lr=1e-12,
            evaluate_every=12,
        )
    content = body.read_bytes()
    safetensors.torch.save_file(Net().state_dict(), body)
    with pytest.raises(InvalidValue, match=r"is another file than the run in .* began with: its SHA-256 is"):
        resume_run(tmp_path / "a")
    body.write_bytes(content)
    run = resume_run(tmp_path / "a")
    first = safetensors.torch.load_file(body)
    assert all(torch.allclose(first[name], value, atol=1e-6) for name, value in weights(run).items())


# --- what is refused --------------------------------------------------------------------------------


def test_a_plan_for_another_size_says_how_to_plan_again(tmp_path):
    with pytest.raises(InvalidValue, match=r"has 150 examples, the plan is for dataset_size=200.*--dataset-size 150"):
        train(private(), "tiny_task:task:size=150", out=tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


def test_under_add_remove_the_size_is_never_read(tmp_path):
    p = plan(epsilon=3.0, delta=1e-3, dataset_size=SIZE, batch_size=20, steps=5, adjacency="add-remove")
    run = train(p, "tiny_task:task:size=150", out=tmp_path / "a")
    assert run.end == "complete"
    for file in ("run.json", "metrics.jsonl", "ledger.jsonl", "plan.json"):  # 150 by itself: times may end so
        assert not re.search(r"(?<![\w.])150(?![\w.])", (tmp_path / "a" / file).read_text().replace("size=150", ""))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"model": "tiny_task:not_a_model"}, "must be a class made from torch's nn.Module"),
        ({"model": "os:system:command=ls"}, "must be a class made from torch's nn.Module"),
        ({"optimizer": "os:system"}, "must be a class made from torch's Optimizer"),
        ({"optimizer": "lbfgs"}, "asks for the loss again"),
        ({"device": "abacus"}, "device='abacus' cannot be used"),
        ({"device": "meta"}, "device='meta' cannot be used"),
        ({"lerning": 3}, "training.lerning is not known"),
        ({"augmentations": 3, "max_physical_batch_size": 2}, "must be at least augmentations=3"),
        ({"seed": -1}, "seed=-1"),
        ({"weights": "~no-such-user/a.safetensors"}, "~no-such-user/a.safetensors: cannot be read"),
    ],
)
def test_what_does_not_fit_leaves_no_folder(tmp_path, settings, words):
    with pytest.raises((InvalidValue, Unsupported)) as caught:
        train(private(), "tiny_task:task", out=tmp_path / "a", **settings)
    assert words in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("spelling", ["tiny_task:not_a_task", "os:getcwd", "nothing"])
def test_a_plan_cannot_call_just_anything(tmp_path, spelling):
    p = with_table(task=spelling)
    with pytest.raises(InvalidValue, match="task="):
        train(p, out=tmp_path / "a")


def test_a_folder_with_a_run_is_not_used_again(tmp_path):
    train(private(3), "tiny_task:task", out=tmp_path / "a")
    with pytest.raises(InvalidValue, match=r"holds a run already.*--resume"):
        train(private(3), "tiny_task:task", out=tmp_path / "a")
    (tmp_path / "a" / "ledger.jsonl").unlink()  # its weights would pass for another run's, at no cost
    with pytest.raises(InvalidValue, match=r"holds checkpoint\.safetensors of a run whose ledger is gone"):
        train(private(3), "tiny_task:task", out=tmp_path / "a")
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidValue, match="is a file"):
        train(private(3), "tiny_task:task", out=tmp_path / "file")


@pytest.mark.parametrize("broken", ["metrics", "checkpoint"])
def test_a_full_disk_in_the_midst_is_one_line_and_the_ledger_is_whole(tmp_path, monkeypatch, broken):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        if broken == "metrics":
            patch.setattr(metrics, "write_all", full)
        else:
            patch.setattr("privet.training.checkpoint_format._write_beside", full)
        with pytest.raises(InvalidValue, match="No space left on device"):
            train(private(), "tiny_task:task", out=tmp_path / "a")
    assert read_ledger(tmp_path / "a").ledger.steps == 10  # the first evaluation
    LedgerFile.open(tmp_path / "a", private()).close()  # and nobody holds it
    run = resume_run(tmp_path / "a")
    assert run.steps == 20
    assert run.guarantee.epsilon == private().guarantee.epsilon


def test_weights_that_are_not_finite_are_not_saved(tmp_path):
    with pytest.raises(InvalidValue, match="learning rate"):
        train(private(), "tiny_task:task", out=tmp_path / "a", lr=1e38, weight_decay=10)


def test_what_a_watcher_is_told_is_marked(tmp_path):
    told: list[Guarantee] = []

    class Listening(Progress):
        def step(self, number, spent, speed):
            told.append(spent())

    train(private(), "tiny_task:task", out=tmp_path / "a", watcher=Listening(), steps_per_line=4)
    charged = [read_ledger(tmp_path / "a").ledger.first(min(20, -(-n // 4) * 4)) for n in range(1, 21)]
    from privet import spent

    assert [g.label for g in told] == ["certified"] * 20
    for shown, ledger in zip(told, charged, strict=True):
        assert shown.epsilon >= spent(ledger, 1e-3).epsilon * (1 - 1e-9)


def test_a_dataset_that_is_read_record_by_record(tmp_path):
    class Records(torch.utils.data.Dataset):
        def __init__(self, part):
            self.part = part

        def __len__(self):
            return len(self.part[0])

        def __getitem__(self, index):
            return self.part[0][index], self.part[1][index]

    tiny = task()
    own = Task(name="own", train=Records(tiny.train), held_out=Records(tiny.held_out), evaluation="made up",
               model="tiny_task:Net")  # fmt: skip
    run = train(private(), own, out=tmp_path / "a", max_physical_batch_size=7)
    assert json.loads(Path(tmp_path / "a" / "run.json").read_text())["own_task"]
    assert run.end == "complete"


def _over_its_mean(out, y):
    each = nn.functional.cross_entropy(out, y, reduction="none")
    return each / each.detach().mean()


def _of_the_hardest(out, y):
    each = nn.functional.cross_entropy(out, y, reduction="none")
    return each * (each.detach() >= each.detach().max())


def _by_class(out, y):
    return nn.functional.cross_entropy(out, y, reduction="none") / torch.bincount(y, minlength=out.shape[1])[y]


def _over_the_batch(out, y):
    return nn.functional.cross_entropy(out, y, reduction="none") / len(y)


@pytest.mark.parametrize("losses", [_over_its_mean, _of_the_hardest, _by_class, _over_the_batch])
def test_losses_that_depend_on_the_batch_by_value_are_refused_in_the_first_step(tmp_path, losses):
    """No gradient goes through a detached mean or a count, and one record moved the sum by a hundred clips."""
    with pytest.raises(Unsupported, match="the loss of one example depends on"):
        train(private(), replace(task(), losses=losses), out=tmp_path / "run", steps_per_line=1)
    assert read_ledger(tmp_path / "run").ledger.steps == 1  # its batch was seen
