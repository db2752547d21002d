"""dp_accounting and opacus as independent peers, on constant and few-level schedules.

A pessimistic peer is never below our lower bound; a tight one is above our upper bound by no more than its error.
"""

import warnings

import pytest

from privet.accounting.accountant import spent
from privet.accounting.ledger import Ledger, Step

DELTA = 1e-5
COARSE = 1e-3

SCHEDULES = {
    "constant": [(1.1, 0.01, 500)],
    "loud": [(3.0, 0.05, 200)],
    "quiet": [(0.6, 0.005, 100)],
    "whole": [(8.0, 1.0, 10)],
    "two levels": [(2.0, 0.02, 100), (1.0, 0.02, 50)],
    "three levels and rates": [(4.0, 0.1, 40), (2.0, 0.02, 60), (1.0, 0.01, 80)],
    "a few steps": [(1.0, 0.1, 3)],
}
pytestmark = pytest.mark.parametrize("rows", SCHEDULES.values(), ids=SCHEDULES)


def ours(rows) -> tuple[float, float]:
    ledger = Ledger()
    for noise, rate, count in rows:
        ledger.add(Step(noise_multiplier=noise, sample_rate=rate), count)
    found = spent(ledger, DELTA)
    assert found.epsilon_lower is not None
    return found.epsilon_lower, found.epsilon


def events(rows, accountant):
    import dp_accounting

    for noise, rate, count in rows:
        gaussian = dp_accounting.GaussianDpEvent(noise)
        accountant.compose(gaussian if rate == 1 else dp_accounting.PoissonSampledDpEvent(rate, gaussian), count)
    return accountant


def test_dp_accounting_pld_is_just_above(rows):
    from dp_accounting import pld

    peer = events(rows, pld.PLDAccountant(value_discretization_interval=COARSE)).get_epsilon(DELTA)
    low, high = ours(rows)
    steps = sum(count for *_, count in rows)
    assert low <= peer
    assert peer - COARSE * steps <= high  # its losses are rounded up by at most one interval each
    assert peer <= high * 1.05 + COARSE


def test_dp_accounting_rdp_is_above(rows):
    from dp_accounting import rdp

    peer = events(rows, rdp.RdpAccountant()).get_epsilon(DELTA)
    assert ours(rows)[0] <= peer <= 2 * ours(rows)[1] + 0.5


def test_opacus_rdp_is_above(rows):
    from opacus.accountants import RDPAccountant

    peer = RDPAccountant()
    peer.history = list(rows)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns that the best order is at the end of its list
        epsilon = peer.get_epsilon(DELTA)
    assert ours(rows)[0] <= epsilon <= 2 * ours(rows)[1] + 0.5


def test_opacus_prv_is_within_its_error(rows):
    from opacus.accountants import PRVAccountant

    if any(rate == 1 for _, rate, _ in rows):  # it knows sampled steps only: the nearest it can do, which costs less
        rows = [(noise, min(rate, 0.999), count) for noise, rate, count in rows]
    peer, error = PRVAccountant(), 0.01
    peer.history = list(rows)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        epsilon = peer.get_epsilon(DELTA, eps_error=error, delta_error=DELTA / 1000)
    low, high = ours(rows)
    assert low <= epsilon  # it returns its upper estimate
    assert epsilon - 2 * error <= high * (1 + 1e-3)
