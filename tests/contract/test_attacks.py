"""Every registered attack: many victims at once, each as if alone, from what it is allowed to see and nothing else."""

import pytest
import torch

from privet.attacks import Reconstruction, registry, resolve_attack
from privet.attacks.contract import ATTACK, records, sample_observation
from privet.attacks.observing import TargetRecords
from privet.attacks.outcome import measure_reconstruction

NAMES = registry.names()
BRIEFLY = {name: f"{name}:iterations=40" if name.startswith("invert") else name for name in NAMES}
X, Y = records(6)


@pytest.fixture(scope="module")
def found() -> dict[str, Reconstruction]:
    return {name: resolve_attack(name).run(sample_observation()) for name in NAMES}


def test_these_are_registered() -> None:
    assert {"analytic", "invert-cosine", "invert-l2", "prior"} <= set(NAMES)


@pytest.mark.parametrize("check", ATTACK.checks)
@pytest.mark.parametrize("name", NAMES)
def test_it_keeps_the_contract(name: str, check: str) -> None:
    assert ATTACK.checks[check](BRIEFLY[name]) == ""


@pytest.mark.parametrize("name", NAMES)
def test_it_says_how_long_it_took(name: str, found: dict[str, Reconstruction]) -> None:
    assert found[name].seconds > 0


@pytest.mark.parametrize("name", NAMES)
def test_without_privacy_every_record_is_found(name: str, found: dict[str, Reconstruction]) -> None:
    victims = TargetRecords(
        inputs=X[:, None], labels=Y[:, None], places=torch.arange(6)[:, None], candidates=(X, Y), classes=3
    )
    measures = measure_reconstruction(found[name], victims)
    assert measures.top1 == 6
    assert measures.labels == 6
    assert measures.succeeded == 6
