"""`privet doctor`: the machine, a model's rules, and what it says of a model that cannot be trained privately."""

import json
from pathlib import Path

import pytest
from click.testing import Result

from typed import refused, run

MODELS = """
import torch
from torch import nn

LOSS, BATCH = nn.CrossEntropyLoss(reduction="none"), (torch.randn(8, 4), torch.randint(3, (8,)))

def fine():
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.LayerNorm(6), nn.Linear(6, 3)), LOSS, BATCH

def coupled():
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)), LOSS, BATCH

def summed():
    return nn.Linear(4, 3), nn.CrossEntropyLoss(), BATCH

def wrong():
    return 3
"""


@pytest.fixture
def doctor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    name = f"models_of_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(MODELS)
    monkeypatch.syspath_prepend(str(tmp_path))

    def ask(*words: str) -> Result:
        return run("doctor", *(word.replace("models", name) for word in words))

    return ask


def test_the_machine(doctor) -> None:
    found = json.loads(doctor("--json").stdout)
    assert {"python", "torch", "numpy", "threads", "gpu"} <= found.keys()
    assert f"torch       {found['torch']}" in doctor().stdout


def test_a_model_with_the_rule_of_each_parameter(doctor) -> None:
    result = doctor("models:fine", "--rounds", "1")
    assert result.exit_code == 0, result.output
    assert "2.weight, 2.bias  layer_norm -> layer norm" in result.stdout
    assert "63 parameters" in result.stdout


def test_json_has_the_same(doctor) -> None:
    found = json.loads(doctor("models:fine", "--rounds", "1", "--json").stdout)
    assert [use["rule"] for use in found["uses"]] == ["linear", "layer norm", "linear"]
    assert found["whole"] == ""
    assert found["milliseconds"].keys() == {"private", "plain"}


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("models:coupled", "1: BatchNorm1d mixes the examples of a batch"),
        ("models:coupled", "Use nn.GroupNorm(3, 6) in its place"),
        ("models:summed", "loss_fn gave (), not one loss for each of"),
        ("models:wrong", "must be a function without arguments that returns (model, loss_fn, (inputs, targets))"),
        ("models:missing", "has no 'missing'"),
        ("models", "must be an address such as my.module:name"),
        ("no_such_module:make", "cannot be imported"),
    ],
)
def test_what_cannot_be_trained_is_one_line(doctor, address: str, said: str) -> None:
    refused(doctor(address), said)
