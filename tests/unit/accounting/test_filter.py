"""The filter keeps its total also where plans follow earlier outputs; composition of fixed plans does not."""

import math

import numpy as np
import pytest
from scipy import stats

from privet import Ledger, Step, spent
from privet.accounting import compose_ledgers, delta_at
from privet.accounting.filter import Filter
from privet.accounting.rdp import ORDERS, Divergence, epsilon_from_rdp
from privet.accounting.sampling import sampling
from privet.errors import InvalidValue, Unsupported

DELTA = 1e-5


def ledger(noise: float, rate: float = 1.0, steps: int = 1, kind: str = "poisson") -> Ledger:
    made = Ledger()
    made.add(Step(noise_multiplier=noise, sample_rate=rate, sampling=sampling(kind)), steps)
    return made


RUN = ledger(1.0, 0.01, 500)


def test_one_run_costs_what_pld_says_and_several_what_one_order_says() -> None:
    total = Filter.for_first_run(RUN, epsilon=3.0, delta=DELTA)
    assert total.cost([]) == 0.0
    assert total.cost([RUN]) == spent(RUN, DELTA).epsilon
    by_hand = epsilon_from_rdp(order=total.order, rdp=2 * Divergence(RUN)(total.order), delta=DELTA)
    assert by_hand <= total.cost([RUN, RUN]) <= by_hand * 1.001
    assert spent(compose_ledgers(RUN, RUN), DELTA).epsilon <= total.cost([RUN, RUN])  # what adaptivity costs


def test_the_order_lets_as_many_runs_begin_as_any_other() -> None:
    total = Filter.for_first_run(RUN, epsilon=6.0, delta=DELTA)

    def most(order: float) -> int:
        fixed = Filter(epsilon=6.0, delta=DELTA, order=order)
        return next(runs for runs in range(2, 50) if fixed.cost([RUN] * runs) > 6.0) - 1

    assert most(total.order) == max(most(order) for order in ORDERS if order < 64)


def test_the_order_stays_what_later_runs_are() -> None:
    """It is fixed before the first output: the cost of a set of runs is that of this order, not of the best one."""
    total = Filter.for_first_run(RUN, epsilon=8.0, delta=DELTA)
    other = ledger(4.0)
    fixed = sum(Divergence(one)(total.order) for one in (RUN, other))
    assert total.cost([RUN, other]) >= epsilon_from_rdp(order=total.order, rdp=fixed, delta=DELTA)
    assert total.cost([RUN, other]) == total.cost([other, RUN])


# --- why a filter ---


def gaussian_delta(epsilon: np.ndarray, mu: float) -> np.ndarray:
    """The hockey-stick divergence of one Gaussian release at any epsilon, also below 0."""
    return stats.norm.cdf(mu / 2 - epsilon / mu) - np.exp(epsilon) * stats.norm.cdf(-mu / 2 - epsilon / mu)


def sampled_delta(epsilon: np.ndarray, mu: float, rate: float) -> np.ndarray:
    """The same of a sampled one: what the record's presence shows (Balle et al. 2018, Theorem 2)."""
    inner = (np.exp(epsilon) - 1 + rate) / rate
    within = rate * gaussian_delta(np.log(np.maximum(inner, 1e-300)), mu)
    return np.where(inner > 0, within, 1 - np.exp(epsilon))


def adaptive_delta(epsilon: float, first: float, *choices: "np.ndarray") -> float:
    """Delta at `epsilon` of a Gaussian release, then of the choice that is worse for what it showed: by quadrature."""
    worse = np.max(choices, axis=0)
    return float(np.trapezoid(stats.norm.pdf(Z) * worse, Z))


Z = np.linspace(-10, 10, 40_001)
FIRST, SECOND, SAMPLED, RATE = 0.8, 0.608, 2.6, 0.02  # mu of the releases


def left(epsilon: float) -> np.ndarray:
    """What is left of epsilon after the first release showed a loss of mu z + mu^2 / 2."""
    return epsilon - (FIRST * Z + FIRST**2 / 2)


def test_fixed_plans_keep_the_total_and_a_choice_by_outputs_does_not() -> None:
    """Two plans that each keep delta at epsilon; who takes the worse of them after a look exceeds it."""
    epsilon = 3.0
    plain = [gaussian_delta(left(epsilon), SECOND), sampled_delta(left(epsilon), SAMPLED, RATE)]
    each = [adaptive_delta(epsilon, FIRST, one) for one in plain]
    ours = [
        compose_ledgers(ledger(1 / FIRST), ledger(1 / SECOND)),
        compose_ledgers(ledger(1 / FIRST), ledger(1 / SAMPLED, RATE)),
    ]
    for by_hand, known in zip(each, ours, strict=True):
        assert by_hand <= delta_at(known, epsilon)[1] * (1 + 1e-6)
    assert adaptive_delta(epsilon, FIRST, *plain) > 1.6 * max(each)


def test_the_filter_covers_whoever_chooses_by_outputs() -> None:
    first, plain, sampled = ledger(1 / FIRST), ledger(1 / SECOND), ledger(1 / SAMPLED, RATE)
    total = Filter.for_first_run(first, epsilon=6.0, delta=1e-4)
    epsilon = max(total.cost([first, other]) for other in (plain, sampled))
    found = adaptive_delta(epsilon, FIRST, gaussian_delta(left(epsilon), SECOND),
                           sampled_delta(left(epsilon), SAMPLED, RATE))  # fmt: skip
    assert found <= 1e-4


# --- what it covers ---


@pytest.mark.parametrize("kind", ["shuffled", "poisson"])
def test_shuffled_epochs_add_up_by_run(kind: str) -> None:
    run = ledger(2.0, 0.25, 3, kind)
    total = Filter.for_first_run(run, epsilon=9.0, delta=DELTA)
    assert total.cost([run] * 2) >= spent(compose_ledgers(run, run), DELTA).epsilon


def test_batches_that_a_cap_cuts_take_their_share_of_delta() -> None:
    wide = ledger(2.0, 0.01, 100, "truncated-poisson:cap=60,size=1000")
    tight = ledger(2.0, 0.01, 100, "truncated-poisson:cap=12,size=1000")
    total = Filter.for_first_run(wide, epsilon=3.0, delta=DELTA)
    assert math.isfinite(total.cost([wide, wide]))
    with pytest.raises(Unsupported, match="larger cap"):
        total.cost([wide, tight])


def test_a_total_is_a_number() -> None:
    for epsilon in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(InvalidValue, match="total_epsilon"):
            Filter.for_first_run(RUN, epsilon=epsilon, delta=DELTA)
    with pytest.raises(Unsupported, match="order"):
        Filter(epsilon=1.0, delta=DELTA, order=1.0)


def test_what_has_no_theorem_is_refused() -> None:
    with pytest.raises(Unsupported, match="replace-one"):
        Filter.for_first_run(RUN, epsilon=3.0, delta=DELTA, adjacency="replace-one")
