"""One contract for everything registered as an accountant: a new file is tested on arrival."""

import pytest

import privet.accounting
from privet.accounting.accountant import spent
from privet.diagnosis.plugin_contract import ACCOUNTANT, DELTA, RATES, _rates, ledger_of
from privet.errors import Unsupported

NAMES = privet.accounting.registry.names()

pytestmark = pytest.mark.parametrize("name", NAMES)


@pytest.mark.parametrize("check", ACCOUNTANT.checks)
def test_it_keeps_the_contract(name: str, check: str) -> None:
    assert ACCOUNTANT.checks[check](name) == ""


def test_it_covers_poisson_sampling_and_full_batches(name: str) -> None:
    """So that no check of the contract passes because it had nothing to try."""
    assert _rates(name) == list(RATES)


@pytest.mark.parametrize("rate", RATES)
def test_a_guarantee_names_its_method(name: str, rate: float) -> None:
    guarantee = spent(ledger_of(rate=rate), DELTA, accountant=name)
    assert guarantee.method == name
    assert guarantee.epsilon_lower is None or 0 <= guarantee.epsilon_lower <= guarantee.epsilon


def test_an_empty_ledger_has_a_lower_bound_of_zero(name: str) -> None:
    assert spent(privet.accounting.Ledger(), DELTA, accountant=name).epsilon_lower == 0


def test_replacing_a_record_of_a_poisson_sample_is_always_refused(name: str) -> None:
    with pytest.raises(Unsupported, match="replace-one"):
        spent(ledger_of(), DELTA, accountant=name, adjacency="replace-one")
