"""`privet doctor --plugin`: the contract of an extension point, run on parts as users bring them."""

import json
from pathlib import Path

import pytest

from typed import answer, refused, run

pytestmark = pytest.mark.usefixtures("few_checks")

KINDS = {
    "privet.schedules.shapes:Cosine": "schedule",
    "privet.accounting.rdp:Rdp": "accountant",
    "outside_parts:Careful": "clipping rule",
    "privet.attacks.inversion:Analytic": "attack",
    "tiny_task:task": "dataset",
}
BROKEN = {
    "outside_parts:NoOp": "no example adds more than its bound",
    "outside_parts:Draws": "the scales of an example depend on that example alone",
    "outside_parts:NotANumber": "the scales of an example depend on that example alone",
    "outside_parts:Cheap": "epsilon is not below what is proven to be spent",
    "broken_parts:Rising": "the same values every time",
    "broken_parts:Negative": "one finite positive number for each step",
    "broken_parts:Peeks": "it reads weights from the state, and changes none",
    "broken_parts:Coupled": "its network can be trained privately",
}
PARTS = """
import torch
from torch import nn
import numpy as np
from privet.attacks import Reconstruction
from privet.data import Task

class Rising:
    calls = 0
    def values(self, steps):
        Rising.calls += 1
        return np.full(steps, 1.0 + Rising.calls)

class Negative:
    def values(self, steps):
        return np.linspace(1.0, -1.0, steps)

class Peeks:
    def run(self, observation):
        first = next(observation.model.parameters())
        size, ones = observation.size, torch.ones(observation.size)
        inputs = torch.full((size, 1, *observation.shape), float(first.sum()))
        return Reconstruction(inputs=inputs, labels=torch.zeros(size, 1, dtype=torch.int64), loss=ones,
                              iterations=ones, evaluations=ones)

def Coupled() -> Task:
    x, y = torch.randn(40, 3), torch.randint(2, (40,))
    make = lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    return Task(name="coupled", train=(x, y), held_out=(x, y), evaluation="made up", model=make)

def make():
    from torch.nn import functional as F
    return nn.Linear(3, 2), nn.CrossEntropyLoss(reduction="none"), (torch.randn(4, 3), torch.tensor([0, 1, 1, 0]))
"""


@pytest.fixture(autouse=True)
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_parts.py").write_text(PARTS)
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.parametrize("address", KINDS)
def test_what_keeps_its_contract_passes(address: str) -> None:
    found = answer("doctor --plugin", address)
    assert (found["plugin"], found["kind"], found["passes"]) == (address, KINDS[address], True)
    assert all(check["passes"] and check["why"] == "" for check in found["checks"])
    text = run("doctor --plugin", address)
    assert text.exit_code == 0
    assert text.stdout.startswith(f"{address}: {KINDS[address]}\n  pass  ")


@pytest.mark.parametrize("address", BROKEN)
def test_what_breaks_its_contract_is_told_and_exits_1(address: str) -> None:
    result = run("doctor --plugin", address, "--json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert found["passes"] is False
    assert BROKEN[address] in [check["check"] for check in found["checks"] if not check["passes"]]
    text = run("doctor --plugin", address)
    assert text.exit_code == 1
    assert f"  FAIL  {BROKEN[address]}: " in text.stdout


def test_a_layer_rule_is_compared_with_autograd_on_a_model_that_uses_it() -> None:
    address = "privet.per_example.layers.linear:Linear"
    alone = run("doctor --plugin", address)
    assert alone.exit_code == 1
    assert "not checked: give a function" in alone.stdout
    assert answer("doctor broken_parts:make --plugin", address)["passes"]
    other = run("doctor broken_parts:make --plugin privet.per_example.layers.embedding:Embedding")
    assert other.exit_code == 1
    assert "the model does not use it; it uses linear" in other.stdout


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("os:sep", "has the methods of no extension point"),
        ("nowhere:Thing", "cannot be imported"),
        ("os:nothing", "is not there"),
        ("plain", "must be an address"),
        ("outside_parts:OneGroup", "has the methods of no extension point"),
    ],
)
def test_what_is_no_plugin_is_refused_in_one_line(address: str, words: str) -> None:
    refused(run("doctor --plugin", address), words)
