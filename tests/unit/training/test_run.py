"""A run's folder read back: what was spent from the ledger alone, and damage named."""

import json
import shutil
import sys

import pytest
import torch
from torch import nn

from privet import Run, plan, train
from privet.errors import InvalidValue
from privet.ledger.file import LedgerFile
from privet.training import checkpoint, checkpoint_format
from privet.training.train import resume_run
from tiny_task import SIZE, task

pytestmark = pytest.mark.usefixtures("few_checks")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that is over, to be copied."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    p = plan(epsilon=3.0, delta=1e-3, dataset_size=SIZE, batch_size=20, steps=10)
    train(p, "tiny_task:task", out=folder, ema_decay=0.9)
    return folder


@pytest.fixture
def folder(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "a")


def test_it_says_all_that_a_report_needs(whole):
    run = Run.load(whole)
    assert run.plan.hash == run.about["plan"]
    assert run.settings.ema_decay == 0.9
    assert (run.steps, run.end, run.seed, run.together, run.notes) == (10, "complete", None, None, ())
    assert run.guarantee.epsilon <= 3.0
    assert run.checkpoint == whole
    assert run.versions["torch"] == torch.__version__.split("+")[0] or run.versions["torch"] == torch.__version__
    assert run.task().name == "tiny"


def test_the_network_has_the_averaged_weights_bit_for_bit(whole):
    kept = checkpoint.peek(whole)
    network = Run.load(whole).network()
    assert not network.training
    assert all(torch.equal(value, kept.average[name]) for name, value in network.named_parameters())


def test_the_network_is_made_without_the_data(whole, monkeypatch):
    monkeypatch.setattr(sys.modules["privet.data.task"], "task", lambda *_, **__: pytest.fail("the task was loaded"))
    assert isinstance(Run.load(whole).network(), nn.Module)


def test_tied_weights_are_averaged_together(tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.one = nn.Linear(3, 3, bias=False)
            self.other = nn.Linear(3, 3, bias=False)
            self.other.weight = self.one.weight

    model = Tied()
    average = {"one.weight": torch.full((3, 3), 7.0)}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    checkpoint.save(tmp_path, model=model, optimizer=optimizer, average=average, extra={})
    again = Tied()
    checkpoint.load_weights(tmp_path, model=again)
    assert torch.equal(again.other.weight, average["one.weight"])


def test_what_was_spent_is_read_from_the_ledger_and_not_from_the_checkpoint(folder):
    (folder / checkpoint_format.NAME).unlink()
    (folder / "metrics.jsonl").unlink()
    run = Run.load(folder)
    assert (run.steps, run.checkpoint, run.scores) == (10, None, None)
    assert run.guarantee.label == "certified"
    with pytest.raises(InvalidValue, match="no weights"):
        run.network()


def test_a_run_with_steps_left_holds_at_the_plans_epsilon(tmp_path, folder):
    plan_ = Run.load(folder).plan
    (folder / "ledger.jsonl").unlink()
    with LedgerFile.create(folder, plan_) as ledger:
        for number in range(4):
            ledger.charge(number, plan_.steps[number])
    about = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(about | {"end": None}))
    run = Run.load(folder)
    assert not run.is_over
    assert run.guarantee.epsilon == plan_.guarantee.epsilon
    assert (run.spent.label, run.spent.epsilon < run.guarantee.epsilon) == ("certified", True)
    (folder / "run.json").write_text(json.dumps(about | {"end": "accuracy 0.5 was reached"}))
    assert Run.load(folder).spent.label == "claimed"
    assert Run.load(folder).guarantee.label == "certified"


def test_a_run_without_a_step_has_spent_nothing(folder):
    plan_ = Run.load(folder).plan
    (folder / "ledger.jsonl").unlink()
    LedgerFile.create(folder, plan_).close()
    run = Run.load(folder)
    assert (run.steps, run.spent.epsilon, run.guarantee.epsilon) == (0, 0.0, plan_.guarantee.epsilon)


def test_a_run_of_before_these_were_written_down_is_read(whole, folder):
    about = json.loads((folder / "run.json").read_text())
    assert (about.pop("non_private_preprocessing"), about.pop("weights")) == ("", None)
    (folder / "run.json").write_text(json.dumps(about))
    assert Run.load(folder).guarantee == Run.load(whole).guarantee
    assert Run.load(folder).non_private_preprocessing == ""
    (folder / "run.json").write_text(json.dumps(about | {"source": "texts; COUNTED WITHOUT PRIVACY, as published"}))
    run = Run.load(folder)
    assert (run.guarantee.label, run.spent.label) == ("claimed", "claimed")
    assert "guarantee: none, vocabulary=counted" in run.guarantee.method


def test_weights_of_another_network_are_refused(whole):
    own = task()
    with pytest.raises(InvalidValue, match=r"checkpoint\.safetensors"):
        Run.load(whole).network(type(own)(name="x", train=own.train, held_out=own.held_out, evaluation="",
                                          model=lambda: nn.Linear(4, 2)))  # fmt: skip


def edited(**changes):
    def edit(folder):
        about = json.loads((folder / "run.json").read_text())
        (folder / "run.json").write_text(json.dumps(about | changes))

    return edit


def without(key):
    def edit(folder):
        about = json.loads((folder / "run.json").read_text())
        del about[key]
        (folder / "run.json").write_text(json.dumps(about))

    return edit


def text(content):
    return lambda folder: (folder / "run.json").write_text(content)


DAMAGE = {
    "no folder": (shutil.rmtree, "there is no such file. Give the folder of a run"),
    "no run.json": (lambda f: (f / "run.json").unlink(), "`privet epsilon --from` reads it"),
    "no plan.json": (lambda f: (f / "plan.json").unlink(), "plan.json: there is no such file"),
    "no ledger": (lambda f: (f / "ledger.jsonl").unlink(), "ledger.jsonl: there is no such file"),
    "empty": (text(""), "not JSON"),
    "torn": (text('{"format": "privet-run", "ver'), "not JSON"),
    "a list": (text("[]"), "is not the description of a run"),
    "deep": (text("[" * 100_000), "nested too deeply"),
    "another format": (edited(format="privet-plan"), "is not the description of a run"),
    "another version": (edited(version=3), "Use the Privet that wrote it"),
    "another plan": (edited(plan="sha256:00"), "different plans"),
    "an unknown key": (edited(more=1), "'more', which is not known"),
    "a missing key": (without("seed"), "has no 'seed'"),
    "a seed that is a word": (edited(seed="7"), "seed='7' is not what a run has"),
    "a seed in a private run": (edited(seed=7), "Whether it is private could not be told"),
    "a flag that is a number": (edited(uncertified=1), "uncertified=1 is not what"),
    "an unknown setting": (edited(settings={"lerning": 1}), "training.lerning is not known"),
    "settings that are no table": (edited(settings=[]), "settings=[] is not what"),
    "a network without facts": (edited(network={"model": "cnn"}), "network is not what"),
    "NaN": (text('{"format": "privet-run", "version": NaN}'), "NaN is not a number"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_named_in_one_line(folder, damage):
    do, words = DAMAGE[damage]
    do(folder)
    with pytest.raises(InvalidValue) as caught:
        Run.load(folder)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "Make the plan again" not in str(caught.value) or "plan.json" in str(caught.value)
    with pytest.raises(InvalidValue):
        resume_run(folder)


def test_a_run_from_elsewhere_cannot_call_just_anything(folder):
    edited(network={"model": "tiny_task:not_a_model", "facts": {}})(folder)
    with pytest.raises(InvalidValue, match=r"nn\.Module"):
        Run.load(folder).network()
    edited(network=None, task="os:getcwd", settings={"task": "os:getcwd"})(folder)
    with pytest.raises(InvalidValue, match="returns a Task"):
        Run.load(folder).network()
