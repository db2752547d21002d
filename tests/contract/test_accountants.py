"""One contract for everything registered as an accountant: a new file is tested on arrival."""

import itertools
from typing import get_args

import numpy as np
import pytest

import privet.accounting
from privet.accounting.base import spent
from privet.accounting.guarantee import LABELS, Relation
from privet.accounting.ledger import Ledger, Step
from privet.accounting.sampling import FixedSize, Poisson, Sampling, Shuffled
from privet.errors import Unsupported

NAMES = privet.accounting.registry.names()
SAMPLINGS = (Poisson(), FixedSize(), Shuffled())
RELATIONS: tuple[Relation, ...] = get_args(Relation)
RATES = (0.01, 1.0)
DELTA = 1e-5

pytestmark = pytest.mark.parametrize("name", NAMES)


def ledger_of(noise: float = 3.0, rate: float = 0.01, count: int = 10) -> Ledger:
    ledger = Ledger()
    ledger.add(Step(noise=noise, rate=rate), count)
    return ledger


def epsilon(ledger: Ledger, name: str, delta: float = DELTA) -> float:
    return spent(ledger, delta, accountant=name).epsilon


def not_more(left: float, right: float) -> bool:
    """left <= right up to rounding: 1e-6 relative is far below what any accountant promises."""
    return left <= right * (1 + 1e-6) + 1e-9


def test_an_empty_ledger_costs_nothing(name: str) -> None:
    guarantee = spent(Ledger(), DELTA, accountant=name)
    assert (guarantee.epsilon_lower, guarantee.epsilon) == (0, 0)


@pytest.mark.parametrize("rate", RATES)
def test_counting_ten_is_adding_ten_times(name: str, rate: float) -> None:
    one_by_one = Ledger()
    for k in range(10):
        one_by_one.add(Step(noise=3.0, rate=rate, clip=1.0 + k))  # clip must not change the cost
    assert epsilon(ledger_of(rate=rate), name) == pytest.approx(epsilon(one_by_one, name), rel=1e-6)


def test_order_does_not_matter(name: str) -> None:
    noise, rate = np.array([3.0, 5.0, 4.0, 3.0, 8.0]), np.array([0.01, 0.02, 1.0, 0.05, 0.01])
    there, back = Ledger(), Ledger()
    there.extend(noise=noise, rate=rate)
    back.extend(noise=noise[::-1], rate=rate[::-1])
    assert epsilon(there, name) == pytest.approx(epsilon(back, name), rel=1e-6)


@pytest.mark.parametrize("rate", RATES)
def test_more_noise_never_costs_more(name: str, rate: float) -> None:
    costs = [epsilon(ledger_of(noise=noise, rate=rate), name) for noise in (2.0, 2.1, 3.0, 6.0, 20.0)]
    assert all(not_more(after, before) for before, after in itertools.pairwise(costs))


@pytest.mark.parametrize("rate", RATES)
def test_more_steps_never_cost_less(name: str, rate: float) -> None:
    costs = [epsilon(ledger_of(rate=rate, count=count), name) for count in (1, 2, 10, 100, 3000)]
    assert all(not_more(before, after) for before, after in itertools.pairwise(costs))


def test_a_further_step_of_another_kind_never_costs_less(name: str) -> None:
    longer = ledger_of()
    longer.add(Step(noise=7.0, rate=0.02))
    assert not_more(epsilon(ledger_of(), name), epsilon(longer, name))


@pytest.mark.parametrize("rate", RATES)
def test_a_smaller_delta_never_costs_less(name: str, rate: float) -> None:
    costs = [epsilon(ledger_of(rate=rate), name, delta) for delta in (1e-2, 1e-5, 1e-8, 1e-12)]
    assert all(not_more(before, after) for before, after in itertools.pairwise(costs))


@pytest.mark.parametrize("rate", RATES)
def test_the_interval_and_the_label(name: str, rate: float) -> None:
    guarantee = spent(ledger_of(rate=rate), DELTA, accountant=name)
    assert guarantee.epsilon_lower is None or 0 <= guarantee.epsilon_lower <= guarantee.epsilon
    assert guarantee.label in LABELS
    assert guarantee.method == name


@pytest.mark.parametrize(("noise", "rate", "count"), [(3.0, 0.01, 1000), (3.0, 1.0, 10), (1.5, 0.1, 50), (9.0, 1.0, 1)])
def test_certified_means_above_the_true_value(name: str, noise: float, rate: float, count: int) -> None:
    """The tight accountant's lower bound is below the truth: nothing certified may be below it."""
    ledger = ledger_of(noise, rate, count)
    guarantee, tight = spent(ledger, DELTA, accountant=name), spent(ledger, DELTA, accountant="pld")
    if guarantee.label == "certified":
        assert tight.epsilon_lower is not None
        assert guarantee.epsilon >= tight.epsilon_lower
        assert guarantee.epsilon_lower is None or guarantee.epsilon_lower <= tight.epsilon


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_what_has_no_theorem_is_refused_with_a_reason(
    name: str, sampling: Sampling, relation: Relation, rate: float
) -> None:
    ledger, step = Ledger(), Step(noise=3.0, rate=rate, sampling=sampling)
    ledger.add(step, 100)
    reason = privet.accounting.registry.make(name).refuses(step, relation)
    if reason is None:
        assert spent(ledger, DELTA, accountant=name, relation=relation).epsilon > 0
        return
    with pytest.raises(Unsupported) as caught:
        spent(ledger, DELTA, accountant=name, relation=relation)
    assert reason in str(caught.value)
    assert "Use" in reason


def test_replacing_a_record_of_a_poisson_sample_is_always_refused(name: str) -> None:
    with pytest.raises(Unsupported, match="replace"):
        spent(ledger_of(), DELTA, accountant=name, relation="replace")
