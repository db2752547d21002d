"""The best of a random number of runs: the formulas against exact laws, the price against an exact curve."""

import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy import optimize, special

from privet.accounting import Ledger, Step, spent
from privet.accounting.rdp import Divergence, epsilon_from_rdp
from privet.accounting.selection import geometric_charge, geometric_rdp, poisson_rdp, private_selection, repeated_runs
from privet.errors import InvalidValue, Unsupported

DELTA = 1e-5
ORDERS = (1.1, 2.0, 4.0, 16.0, 100.0, 3000.0)
MEANS = (1.0, 1.3, 10.0, 3000.0)


def ledger_of(*, noise: float = 2.0, rate: float = 0.01, steps: int = 1000, sampling: str = "poisson") -> Ledger:
    ledger = Ledger()
    ledger.add(Step(noise_multiplier=noise, sample_rate=rate, sampling=sampling), steps)  # type: ignore[arg-type]
    return ledger


# --- finite mechanisms, exactly ---------------------------------------------------------------------


def best(p: np.ndarray, law: str, mean: float) -> np.ndarray:
    """Logarithms of the law of the best of K draws from p, outcomes in order.

    P[best <= x] = E[F(x)^K], so its differences: s / (mean - (mean - 1) s) or e^(mean (s - 1)) at s = F. For Poisson
    there is one more outcome, the last: K = 0.
    """
    s = np.concatenate(([0.0], np.cumsum(p)[:-1], [1.0]))
    if law == "geometric":
        tail = np.log1p((mean - 1) * (1 - s))
        return math.log(mean) + np.log(p) - tail[:-1] - tail[1:]
    return np.append(mean * (s[1:] - 1) + np.log(-np.expm1(-mean * p)), -mean)


def renyi(log_p: np.ndarray, log_q: np.ndarray, order: float) -> float:
    return float(special.logsumexp(order * log_p + (1 - order) * log_q)) / (order - 1)


def worse(log_p: np.ndarray, log_q: np.ndarray, order: float) -> float:
    return max(renyi(log_p, log_q, order), renyi(log_q, log_p, order))


def both(p: np.ndarray, q: np.ndarray, order: float) -> float:
    return worse(np.log(p), np.log(q), order)


def hockey(p: np.ndarray, q: np.ndarray, epsilon: float) -> float:
    return max(float(np.maximum(a - math.exp(epsilon) * b, 0).sum()) for a, b in ((p, q), (q, p)))


def mechanisms(number: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Pairs of laws on a few ordered outcomes: alike, unlike, lopsided, and with a rare best outcome."""
    rng = np.random.default_rng(7)
    pairs = []
    for k in range(number):
        size = int(rng.integers(2, 7))
        p = rng.dirichlet(np.full(size, rng.choice([0.3, 1.0, 10.0]))) + 1e-9
        q = p * np.exp(rng.choice([0.05, 0.5, 2.0]) * rng.uniform(-1, 1, size))
        if k % 3 == 0:  # the best outcome is rare, and rarer for a neighbour: what makes tuning dear
            p[-1], q[-1] = 1e-3, 1e-3 * math.exp(-rng.uniform(0, 2))
            p[:-1] *= (1 - p[-1]) / p[:-1].sum()
            q[:-1] *= (1 - q[-1]) / q[:-1].sum()
        pairs.append((p / p.sum(), q / q.sum()))
    return pairs


def thrice(epsilon: float) -> tuple[np.ndarray, np.ndarray]:
    """A rare outcome below a rarer best one, each e^epsilon apart: its best of many is nearly 3 epsilon apart."""
    p, q = np.array([0.0, 1e-5 * math.exp(epsilon), 0.05 * math.exp(-epsilon)]), np.array([0.0, 1e-5, 0.05])
    p[0], q[0] = 1 - p.sum(), 1 - q.sum()
    return p, q


PAIRS = [thrice(0.1), thrice(1.0), *mechanisms(24)]


def bounded(law: str, p: np.ndarray, q: np.ndarray, order: float, mean: float) -> float:
    """The formula, its inputs exact."""
    rdp = both(p, q, order)
    if law == "geometric":
        charge = min(geometric_charge(order=b, rdp=both(p, q, b), mean=mean) for b in ORDERS)
        return geometric_rdp(order=order, rdp=rdp, charge=charge, mean=mean)
    chance = hockey(p, q, math.log1p(1 / (order - 1)))
    return poisson_rdp(order=order, rdp=rdp, delta=chance, mean=mean)


@pytest.mark.parametrize("law", ["geometric", "poisson"])
@pytest.mark.parametrize("mean", MEANS)
def test_the_exact_divergence_is_below_the_formula(law, mean):
    for p, q in PAIRS:
        after = best(p, law, mean), best(q, law, mean)
        for order in ORDERS:
            assert worse(*after, order) <= bounded(law, p, q, order, mean) * (1 + 1e-9) + 1e-9


def test_the_laws_of_the_best_are_laws():
    rng = np.random.default_rng(0)
    p = np.array([0.5, 0.3, 0.2])
    for law, draw in (("geometric", rng.geometric(1 / 3, 10_000)), ("poisson", rng.poisson(3.0, 10_000))):
        found = np.exp(best(p, law, 3.0))
        assert found.sum() == pytest.approx(1)
        seen = [max((int(k) for k in rng.choice(3, size=n, p=p)), default=3) for n in draw]
        share = np.bincount(seen, minlength=len(found)) / len(seen)
        assert share == pytest.approx(found, abs=6 * 0.5 / 100)  # six standard errors: one false alarm in 10^8


WITHOUT = {
    "the log(1/gamma) of the charge": ("geometric", lambda p, q, a, m: both(p, q, a) + math.log(m) / (a - 1)),
    "half of the charge": (
        "geometric",
        lambda p, q, a, m: (
            both(p, q, a)
            + min(geometric_charge(order=b, rdp=both(p, q, b), mean=m) for b in ORDERS) / 2
            + math.log(m) / (a - 1)
        ),
    ),
    "the chance": ("poisson", lambda p, q, a, m: both(p, q, a) + math.log(m) / (a - 1)),
    "the log of a Poisson mean": (
        "poisson",
        lambda p, q, a, m: both(p, q, a) + m * hockey(p, q, math.log1p(1 / (a - 1))),
    ),
}


@pytest.mark.parametrize("left_out", WITHOUT)
def test_a_formula_without_a_term_fails_somewhere(left_out):
    """Negative controls: the mechanisms above are hard enough to notice."""
    law, formula = WITHOUT[left_out]
    assert any(
        worse(best(p, law, mean), best(q, law, mean), order) > formula(p, q, order, mean) + 1e-6
        for p, q in PAIRS
        for mean in MEANS
        for order in ORDERS
    )


# --- one Gaussian release, exactly ------------------------------------------------------------------


def exact_epsilon(noise: float, law: str, mean: float) -> float:
    """Epsilon at DELTA of the best (largest, or least) of K Gaussian releases, by summing densities on a fine grid."""
    x = np.linspace(-12, 12, 60_001)
    h, mu = x[1] - x[0], 1 / noise

    def density(shift: float, sign: int) -> np.ndarray:
        below = special.ndtr(sign * (x - shift))
        slope = (
            (1 / mean) / (1 - (1 - 1 / mean) * below) ** 2 if law == "geometric" else mean * np.exp(mean * (below - 1))
        )
        return slope * np.exp(-((x - shift) ** 2) / 2) / math.sqrt(2 * math.pi)

    sides = [(density(mu, s), density(0.0, s)) for s in (1, -1)]
    sides += [(b, a) for a, b in sides]

    def delta(epsilon: float) -> float:
        return max(float(np.maximum(a - math.exp(epsilon) * b, 0).sum() * h) for a, b in sides)

    return float(optimize.brentq(lambda e: delta(e) - DELTA, 1e-6, 30, xtol=1e-6))


@pytest.mark.parametrize("law", ["geometric", "poisson"])
@pytest.mark.parametrize(("noise", "mean"), [(5.0, 1.0), (5.0, 10.0), (2.0, 3.0), (20.0, 100.0)])
def test_the_price_is_above_the_truth_and_not_by_much(law, noise, mean):
    found = private_selection(ledger_of(noise=noise, rate=1.0, steps=1), DELTA, law=law, mean=mean).epsilon
    truth = exact_epsilon(noise, law, mean)
    assert truth <= found <= 4 * truth


# --- the price --------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", [1.0, 2.0, 8.0])
def test_one_run_on_average_is_not_cheaper_than_one_run(noise):
    ledger = ledger_of(noise=noise)
    one, renyi_one = (spent(ledger, DELTA, accountant=name).epsilon for name in ("pld", "rdp"))
    for law in ("geometric", "poisson"):
        assert private_selection(ledger, DELTA, law=law, mean=1).epsilon >= max(one, renyi_one * (1 - 1e-6))
    assert private_selection(ledger, DELTA, law="geometric", mean=1).epsilon == pytest.approx(renyi_one, rel=1e-4)


@settings(max_examples=25)
@given(st.floats(0.7, 30), st.floats(1, 200), st.floats(1.05, 4), st.sampled_from(["geometric", "poisson"]))
def test_more_trials_cost_more(noise, mean, factor, law):
    few, many = (
        private_selection(ledger_of(noise=noise, rate=1.0, steps=1), DELTA, law=law, mean=m).epsilon
        for m in (mean, mean * factor)
    )
    assert few < many


@settings(max_examples=4)
@given(st.floats(0.7, 8), st.floats(1.01, 2), st.sampled_from(["geometric", "poisson"]))
def test_more_noise_never_costs_more(noise, factor, law):
    little, much = (
        private_selection(ledger_of(noise=n), DELTA, law=law, mean=10).epsilon for n in (noise, noise * factor)
    )
    assert much <= little


def test_the_search_finds_the_least_order():
    ledger, mean = ledger_of(), 10.0
    dense = (1 + np.geomspace(0.05, 200, 1200)).tolist()
    divergence = Divergence(ledger)
    at = {order: divergence(order) for order in dense}
    charge = min(geometric_charge(order=b, rdp=at[b], mean=mean) for b in dense)
    naive = min(
        epsilon_from_rdp(
            order=a, rdp=geometric_rdp(order=a, rdp=at[a], charge=charge, mean=mean), delta=DELTA
        )
        for a in dense
    )  # fmt: skip
    assert private_selection(ledger, DELTA, law="geometric", mean=mean).epsilon == pytest.approx(naive, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("law", "shape"), [("geometric", 1.0), ("poisson", math.inf)])
def test_a_peer_agrees(law, shape):
    """dp_accounting at dense orders: the same for the geometric law; more for Poisson, whose delta it takes from
    Rényi divergences, where ours is the certified one."""
    from dp_accounting import dp_event
    from dp_accounting.rdp import RdpAccountant

    peer = RdpAccountant((1 + np.geomspace(0.02, 2000, 600)).tolist())
    peer.compose(dp_event.RepeatAndSelectDpEvent(dp_event.GaussianDpEvent(5.0), 10, shape))
    theirs = peer.get_epsilon(DELTA)
    ours = private_selection(ledger_of(noise=5.0, rate=1.0, steps=1), DELTA, law=law, mean=10).epsilon
    assert 0.7 * theirs < ours <= theirs * (1 + 1e-6)
    if law == "geometric":
        assert ours == pytest.approx(theirs, rel=1e-4)


def test_what_no_theorem_covers_is_refused():
    cut = ledger_of(sampling="truncated-poisson:cap=900,size=60000")
    with pytest.raises(Unsupported, match="no theorem for truncated batches"):
        private_selection(cut, DELTA, law="geometric", mean=3)
    fixed = ledger_of(sampling="fixed-size")
    with pytest.raises(Unsupported, match="Use trial_count_distribution='geometric'"):
        private_selection(fixed, DELTA, law="poisson", mean=3, adjacency="replace-one")
    assert private_selection(fixed, DELTA, law="geometric", mean=3, adjacency="replace-one").label == "certified"
    with pytest.raises(Unsupported, match="adjacency='replace-one'"):
        private_selection(ledger_of(), DELTA, law="geometric", mean=3, adjacency="replace-one")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mean": 0.5}, "trials_mean=0.5 must be >= 1"),
        ({"mean": math.nan}, "trials_mean=nan"),
        ({"mean": math.inf}, "trials_mean=inf"),
        ({"mean": True}, "trials_mean=True"),
        ({"law": "fixed"}, "law='fixed' must be one of geometric, poisson"),
    ],
)
def test_what_cannot_be_right_is_named(changes, words):
    with pytest.raises(InvalidValue, match=words):
        private_selection(ledger_of(), DELTA, **{"law": "geometric", "mean": 3.0, **changes})


def test_nothing_costs_nothing():
    assert private_selection(Ledger(), DELTA, law="poisson", mean=3).epsilon == 0


# --- a fixed number ---------------------------------------------------------------------------------


def test_runs_repeated_are_runs_composed():
    one, whole = Ledger(), Ledger()
    one.extend(noise_multiplier=[3.0, 2.0, 2.0, 1.5], sample_rate=0.1)
    for _ in range(5):
        whole.extend(noise_multiplier=[3.0, 2.0, 2.0, 1.5], sample_rate=0.1)
    assert spent(repeated_runs(one, 5), DELTA).epsilon == pytest.approx(spent(whole, DELTA).epsilon, rel=1e-9)


@pytest.mark.parametrize("steps", [3, 4, 5, 11])
def test_a_shuffled_run_begins_with_a_new_epoch(steps):
    """An epoch has 4 steps: what is left of one at the end of a run must not be shared with the next run."""
    noise = np.linspace(9, 6, steps)
    one, epoch = Ledger(), np.arange(steps) // 4
    one.extend(noise_multiplier=noise, sample_rate=0.25, sampling="shuffled")
    mu = math.sqrt(3 * sum(1 / noise[epoch == e].min() ** 2 for e in set(epoch.tolist())))
    truth = Ledger()
    truth.add(Step(noise_multiplier=1 / mu))
    assert spent(repeated_runs(one, 3), DELTA).epsilon == pytest.approx(spent(truth, DELTA).epsilon, rel=1e-9)
    assert spent(repeated_runs(one, 3), DELTA).epsilon_lower is None


@pytest.mark.parametrize(
    "change", [{"sample_rate": 0.5, "sampling": "shuffled"}, {"sample_rate": 0.25, "sampling": "poisson"}]
)
def test_shuffled_runs_that_change_are_refused(change):
    ledger = Ledger()
    ledger.extend(noise_multiplier=[2.0] * 4, sample_rate=0.25, sampling="shuffled")
    ledger.extend(noise_multiplier=[2.0] * 2, **change)
    with pytest.raises(Unsupported, match="Give one of each"):
        repeated_runs(ledger, 2)
