"""What Privet 0.1 wrote is read: a plan, and a run that a crash ended after six of its twelve steps (tests/golden)."""

import json
import shutil
from pathlib import Path

import pytest

from privet.accounting.exchange import from_json
from privet.errors import InvalidValue
from privet.ledger import total
from privet.planning import Plan
from privet.planning.format_1 import TABLES_1, from_format_1, to_format_1
from privet.planning.plan import content_digest
from privet.training.run import Run
from privet.training.train import resume_run

OLD = Path(__file__).parents[2] / "golden" / "run-0.1"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(OLD, tmp_path / "run"))


def test_a_plan_of_format_1_is_the_plan_and_keeps_its_hash(tmp_path: Path) -> None:
    written, found = json.loads((OLD / "plan.json").read_text()), Plan.load(OLD / "plan.json")
    assert written["version"] == 1
    assert found.hash == written["hash"]
    recipe = found.recipe
    assert (recipe.dataset_size, recipe.batch_size, recipe.clipping_norm, recipe.budget.adjacency) == (
        200, 20.0, 0.8, "add-remove",
    )  # fmt: skip
    assert recipe.training["ema_decay"] == 0.9
    found.save(tmp_path / "plan.json")
    again = json.loads((tmp_path / "plan.json").read_text())
    assert (again["version"], again["hash"]) == (2, written["hash"])
    assert Plan.load(tmp_path / "plan.json") == found


def test_a_run_of_format_1_is_read_and_goes_on_to_its_end(folder: Path) -> None:
    run = Run.load(folder)
    assert (run.steps, run.settings.max_physical_batch_size, run.about["uncertified"]) == (6, 16, False)
    assert run.guarantee.label == "certified"
    run = resume_run(folder)
    assert (run.steps, run.end) == (12, "complete")
    assert run.guarantee.epsilon <= 3.0


@pytest.mark.parametrize(("table", "key", "value"), [("recipe", "size", 400), ("steps", "scale", 0.5)])
def test_an_edited_plan_of_format_1_is_refused(folder: Path, table: str, key: str, value: float) -> None:
    content = json.loads((folder / "plan.json").read_text())
    content[table][key] = value
    (folder / "plan.json").write_text(json.dumps(content))
    with pytest.raises(InvalidValue, match="the content is not what was hashed"):
        Plan.load(folder / "plan.json")


def test_an_edited_plan_of_format_1_with_a_new_hash_is_refused(folder: Path) -> None:
    content = json.loads((folder / "plan.json").read_text())
    content["steps"]["scale"] /= 2  # less noise than was certified
    del content["hash"]
    (folder / "plan.json").write_text(json.dumps(content | {"hash": content_digest(content)}))
    with pytest.raises(InvalidValue, match="does not follow from"):
        Plan.load(folder / "plan.json")


@pytest.mark.parametrize("name", TABLES_1)
def test_names_go_there_and_back(name: str) -> None:
    table = dict.fromkeys(TABLES_1[name], 1) | {"epsilon": 2, "training": dict.fromkeys(TABLES_1["training"], 3)}
    old = to_format_1(name, table)
    assert set(old) != set(table)
    assert from_format_1(name, old) == table


def test_a_ledger_of_format_1_is_read() -> None:
    rows = [{"noise": 1.1, "rate": 0.01, "clip": 2.0, "sampling": "poisson", "count": 3}]
    ((step, count),) = from_json({"format": "privet-ledger", "version": 1, "steps": rows})
    assert (step.noise_multiplier, step.sample_rate, step.clipping_norm, count) == (1.1, 0.01, 2.0, 3)


def test_a_total_of_format_1_is_read(tmp_path: Path) -> None:
    row = {"epsilon": 3.0, "delta": 1e-5, "order": 9.0, "relation": "replace", "unit": "user"}
    row |= {"earlier": [], "runs": {}}
    content = {"format": "privet-budget", "version": 1, "datasets": {"people": row}}
    (tmp_path / total.NAME).write_text(json.dumps(content | {"digest": content_digest(content)}))
    assert total.read(tmp_path)["people"].adjacency == "replace-one"
