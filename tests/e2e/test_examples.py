"""The examples as a user runs them: each prints its guarantee, which is the ledger's; their misuse raises."""

import os
import re
import runpy
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import nn

from privet import Training, plan
from privet.data import Task
from privet.errors import InvalidValue
from privet.ledger.reading import read_ledger
from typed import run

ROOT = Path(__file__).parents[2]
EXAMPLES = {  # with what must be installed, and the accuracy that guessing gives
    "own_loop": ("mlxtend", 0.1),
    "lightning_example": ("lightning", 0.1),
    "accelerate_example": ("accelerate", 0.1),
    "finetune": ("mlxtend", 0.2),
    "text": ("torch", 0.34),
    "tabular": ("torch", 0.64),
}
LIGHTNING = pytest.mark.filterwarnings("ignore::FutureWarning:lightning")  # it calls torch by an old name


def started(name: str, folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """The script, in a process of its own that finds no dataset but what ships with packages."""
    kept = {key: value for key, value in os.environ.items() if key not in ("PRIVET_DATA", "WORLD_SIZE")}
    return subprocess.run(
        [sys.executable, str(ROOT / f"examples/{name}.py"), *arguments], cwd=folder, timeout=300, check=False,
        env=kept | {"OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(folder)}, capture_output=True, text=True,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_it_learns_and_prints_what_its_ledger_says(name, tmp_path):
    needed, guessing = EXAMPLES[name]
    if find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed")
    found = started(name, tmp_path, "--out", "runs/a")
    assert found.returncode == 0, found.stderr
    said = found.stdout.splitlines()
    assert re.fullmatch(
        r"epsilon <= \S+ at delta 1e-05 \[certified: pld, true value >= .*, per example(; 2 assumptions)?\]", said[-1]
    )
    assert ("assumptions" in said[-1]) == (name != "tabular")  # it is trained by `train`
    spending = read_ledger(tmp_path / "runs/a")
    assert spending.ledger.steps == spending.header.length  # all of the plan
    assert not spending.notes
    assert run("epsilon --delta 1e-5 --from", str(tmp_path / "runs/a")).stdout.splitlines()[0] == said[-1]
    accuracy = re.search(r"^held-out accuracy (\d\.\d+)", found.stdout, flags=re.M)
    assert accuracy is not None
    assert float(accuracy[1]) > guessing + 0.15


def test_every_example_is_run():
    assert {path.stem for path in (ROOT / "examples").glob("*.py")} - {"audit_opacus"} == set(EXAMPLES)


def test_the_page_shows_what_the_examples_do():
    page = (ROOT / "docs/howto-lightning.md").read_text(encoding="utf-8")
    code = "".join((ROOT / f"examples/{name}.py").read_text(encoding="utf-8") for name in EXAMPLES)
    shown = re.findall(r"^```py\n(.*?)^```", page, flags=re.M | re.S)
    assert len(shown) == 2
    for line in "".join(shown).splitlines():
        assert line.strip().partition("  #")[0] in code, line


# --- misuse -----------------------------------------------------------------------------------------


@pytest.fixture
def images():
    x, y = torch.rand(100, 1, 14, 14), torch.randint(2, (100,))
    return Task(
        name="images", train=(x, y), held_out=(x[:10], y[:10]), evaluation="made up", model="tanh-cnn",
        facts={"shape": (1, 14, 14), "classes": 2},
    )  # fmt: skip


@pytest.fixture(scope="module")
def planned():
    return plan(delta=1e-3, dataset_size=100, batch_size=20, steps=3, noise_multiplier=2.0, solve="epsilon")


@pytest.fixture
def fitted(images, planned, tmp_path):
    """A function that fits a variant of the example's module, and gives it back with what was raised."""
    lightning = pytest.importorskip("lightning")
    kind = runpy.run_path(str(ROOT / "examples/lightning_example.py"))["PrivateDigits"]

    def fit(training_step=None, *, automatic=False, **options):
        module = kind(images, planned, str(tmp_path / "run"))
        module.automatic_optimization = automatic
        module.before = [p.detach().clone() for p in module.network.parameters()]
        if training_step is not None:
            module.training_step = training_step.__get__(module)
        quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
        trainer = lightning.Trainer(**{"max_epochs": 1, "accelerator": "cpu", "devices": 1} | quiet | options)
        try:
            trainer.fit(module)
        except Exception as error:
            return module, error
        finally:
            module.close()
        return module, None

    return fit


def mean_loss(self, batch, _):
    return self.digits.losses(self.network(batch[0]), batch[1]).mean()


def forgotten(self, batch, _):
    self.network(batch[0])


@LIGHTNING
@pytest.mark.slow
@pytest.mark.parametrize(("step", "automatic"), [(mean_loss, True), (forgotten, False)])
@pytest.mark.parametrize("most", [1, 3])
def test_lightning_must_not_step_by_itself(fitted, step, automatic, most):
    module, error = fitted(step, automatic=automatic, max_steps=most if automatic else -1)
    assert isinstance(error, InvalidValue)
    assert "training.step" in str(error)
    assert (module.private.steps_done, module.private.facts.lost) == (1, 1)  # its batch was seen
    assert all(torch.equal(p, old) for p, old in zip(module.network.parameters(), module.before, strict=True))


@LIGHTNING
@pytest.mark.slow
@pytest.mark.parametrize("option", [{"gradient_clip_val": 1.0}, {"accumulate_grad_batches": 4}])
def test_lightning_refuses_its_own_clipping_and_accumulation(fitted, option):
    module, error = fitted(**option)
    assert "not supported for manual optimization" in str(error)
    assert module.private is None  # before any step


@LIGHTNING
@pytest.mark.slow
def test_lightning_counts_private_steps_and_never_makes_more_than_the_plan(fitted):
    module, error = fitted(max_epochs=3)
    assert error is None
    assert module.private.steps_done == module.trainer.global_step == 3
    _, error = fitted()
    assert isinstance(error, InvalidValue)
    assert "Its steps are spent" in str(error)


@LIGHTNING
@pytest.mark.slow
def test_an_error_of_the_users_own_is_the_one_that_is_seen(fitted):
    def wrong(self, batch, _):
        raise KeyError("mine")

    module, error = fitted(wrong)
    assert isinstance(error, KeyError)
    assert (module.private.steps_done, module.private.facts.lost) == (1, 1)


@pytest.fixture
def accelerator():
    accelerate = pytest.importorskip("accelerate")
    yield accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    accelerate.state.AcceleratorState._reset_state(True)
    accelerate.state.GradientState._reset_state()


@pytest.mark.slow
def test_accumulated_raw_gradients_are_refused(accelerator, images, planned, tmp_path):
    raw = nn.Sequential(nn.Flatten(), nn.Linear(196, 2))
    model, optimizer = accelerator.prepare(raw, torch.optim.SGD(raw.parameters(), lr=0.1))
    before = raw[1].weight.detach().clone()

    def as_usual(training):
        for x, y in training:
            with accelerator.accumulate(model):
                accelerator.backward(images.losses(model(x), y).mean())
                optimizer.step()

    with Training(model, optimizer.optimizer, images.train, planned, out=tmp_path / "run") as training:
        with pytest.raises(InvalidValue, match=r"training\.step"):
            as_usual(training)
        assert (training.steps_done, training.facts.lost) == (1, 1)
    assert torch.equal(raw[1].weight, before)
    assert read_ledger(tmp_path / "run").ledger.steps == 1


@pytest.mark.slow
def test_a_prepared_optimizer_is_refused(accelerator, images, planned):
    raw = nn.Sequential(nn.Flatten(), nn.Linear(196, 2))
    model, optimizer = accelerator.prepare(raw, torch.optim.SGD(raw.parameters(), lr=0.1))
    with pytest.raises(InvalidValue, match="leaves steps out"):
        Training(model, optimizer, images.train, planned)
