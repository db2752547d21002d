"""Step: samples of a release in both worlds, and whether the claimed trade-off curve can still be true.

One half of the samples chooses a feature and a threshold, the other half tests it. The verdict needs no epsilon: it
rejects the curve. Features: the projection on the way in which the record moves the query, the same with each entry
over the variance that it has, which shows a layer or an entry with too little noise, and the norm of the rest, which
shows noise whose scale depends on data; over several steps also the largest projection and the norm of what changes
from step to step, which shows noise that is used again.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from privet import _check
from privet.accounting.tradeoff import Curve
from privet.auditing import bounds
from privet.auditing.finding import ALARM, Finding, Verdict, empirical_guarantee
from privet.auditing.mechanism import Mechanism
from privet.auditing.neighbours import NeighbouringPair
from privet.auditing.replay import Pair, Progress
from privet.noise.randomness import Randomness

Floats = NDArray[np.float64]

PILOT = 32  # runs that find the way and the middle; they are not used again
FACTOR = 1.5  # samples must be enough to see a sensitivity this many times the declared one
DOUBT = 0.01  # a claim that is rejected at this level and not at the alarm is not decided
FEATURES = ("projection", "weighed projection", "residual", "largest step", "change between steps")
LEAST_VARIANCE = 1e-12  # of an entry, over that of the declared noise: one without noise weighs most


@dataclass(slots=True)
class Projection:
    """What is looked at in each release: found from runs that are not used again."""

    middle: Floats  # (steps, entries)
    ways: Floats  # (steps, entries), unit vectors or zero
    weighed: Floats  # (steps, entries): the best direction if entries are independent, Fisher's

    @classmethod
    def of(cls, pair: Pair) -> "Projection":
        runs = range(PILOT if pair.which.is_sampled else 4)
        differences = np.nan_to_num(np.stack([pair.difference(k, k + 1) for k in runs])).mean(0)
        norms = np.linalg.norm(differences, axis=1, keepdims=True)
        drawn = np.nan_to_num(np.stack([pair.flatten(pair.without(Randomness(k, 7))) for k in range(PILOT)]))
        weighed = differences / np.maximum(drawn.var(0), LEAST_VARIANCE)
        weighed = weighed / max(float(np.linalg.norm(weighed)), 1e-12)
        return cls(drawn.mean(0), differences / np.maximum(norms, 1e-12), weighed)

    def features(self, seen: Floats) -> list[float]:
        rest = seen - self.middle
        if not math.isfinite(rest.sum()):
            rest = np.nan_to_num(rest, nan=1e6, posinf=1e6, neginf=-1e6)
        along = (rest * self.ways).sum(1)
        residual = math.sqrt(max(float((rest**2).sum() - (along**2).sum()), 0.0))
        found = [float(along.sum()), float((rest * self.weighed).sum()), residual]
        if len(rest) > 1:
            found += [float(along.max()), float(np.linalg.norm(np.diff(rest, axis=0)))]
        return found


def distinguish(
    mechanism: Mechanism, scenes: Sequence[NeighbouringPair], *, samples: int = 2000, significance: float = ALARM,
    delta: float = 1e-5, randomness: Randomness | None = None, progress: Progress | None = None,
) -> Finding:  # fmt: skip
    """`samples` releases of each world in each scene; together a false alarm has the chance `significance`."""
    _check.whole(least=20, samples=samples)
    _check.between(0, 1, significance=significance)
    _check.delta(delta)
    start = time.perf_counter()
    source = Randomness() if randomness is None else randomness
    curve = mechanism.claim.curve
    results = []
    for scene in scenes:
        results.append(
            _test_pair(mechanism, scene, curve, samples, significance / len(scenes), delta, source, progress)
        )
    top = max(results, key=lambda result: result.rank)
    return _finding(top, mechanism, samples, significance, delta, time.perf_counter() - start, len(scenes))


@dataclass(frozen=True, slots=True)
class Result:
    """What one scene gave: the limits for the verdict, those of a milder test, and those for the direct bound."""

    scene: str
    feature: str
    verdict: Verdict
    errors: bounds.Errors
    mu_claimed: float
    epsilon: float
    needed: int | None

    @property
    def rank(self) -> tuple[int, float]:
        return ("consistent", "inconclusive", "violation").index(self.verdict), self.errors.mu


def _test_pair(
    mechanism: Mechanism, scene: NeighbouringPair, curve: Curve, samples: int, significance: float, delta: float,
    source: Randomness, progress: Progress | None,
) -> Result:  # fmt: skip
    pair = Pair.of(mechanism, scene)
    lens = Projection.of(pair)
    worlds = []
    for number, run in enumerate((pair.without, pair.with_)):
        rows = []
        for k in range(samples):
            rows.append(lens.features(pair.flatten(run(source))))
            if progress is not None and not k % 100:
                progress(f"{scene.name}: sample {number * samples + k}")
        worlds.append(np.array(rows))
    half = samples // 2
    without, with_ = (world[half:] for world in worlds)
    for_curve, for_epsilon = bounds.choose_tests(
        worlds[0][:half], worlds[1][:half], curve=curve, delta=delta, significance=significance
    )
    errors = for_curve.errors(without, with_, significance)
    mild = for_curve.errors(without, with_, DOUBT)
    claimed = bounds.equivalent_mu(curve)
    verdict, needed = _verdict(errors, mild, curve, claimed, samples, significance)
    return Result(
        scene.name, FEATURES[for_curve.feature], verdict, errors, claimed,
        for_epsilon.errors(without, with_, significance).epsilon(delta), needed,
    )  # fmt: skip


def _verdict(
    errors: bounds.Errors, mild: bounds.Errors, curve: Curve, claimed: float, samples: int, significance: float
) -> tuple[Verdict, int | None]:
    if errors.rejects(curve):
        return "violation", None
    if mild.rejects(curve):  # it looks like more than the claim
        seen = -special.ndtri(max(errors.seen_false_alarm, 0.5 / samples)) - special.ndtri(
            max(errors.seen_miss, 0.5 / samples)
        )
        return "inconclusive", max(2 * samples, bounds.samples_to_distinguish(float(seen), claimed))
    least, more = bounds.samples_to_distinguish(claimed, FACTOR * claimed), FACTOR * claimed
    if samples >= least and bounds.has_power(claimed, more, samples=samples, significance=significance):
        return "consistent", None
    return "inconclusive", bounds.samples_to_detect(claimed, more, least=max(least, 20), significance=significance)


def _finding(
    top: Result, mechanism: Mechanism, samples: int, significance: float, delta: float, seconds: float, count: int
) -> Finding:
    e, needed = top.errors, "more than a billion" if top.needed is None else f"about {top.needed}"
    outcome = {
        "violation": f"the claimed curve is rejected with confidence {100 * (1 - significance):g} %",
        "consistent": "the claimed curve is not rejected",
        "inconclusive": f"not decided; {needed} samples per world would",
    }[top.verdict]
    says = (
        f"{outcome}; mu >= {e.mu:.3g} (Gaussian reading) against {top.mu_claimed:.3g} claimed; {samples} samples per "
        f"world, {top.scene}, by {top.feature}"
    )
    steps = mechanism.claim.steps
    return Finding(
        kind="step", verdict=top.verdict, says=says, significance=significance, mu=e.mu, mu_claimed=top.mu_claimed,
        empirical=empirical_guarantee(
            top.epsilon, delta=delta, significance=significance, method="direct bound", steps=len(steps),
            sampling=str(steps[0].sampling),
        ),
        samples_needed=top.needed, seconds=seconds,
        numbers={"scene": top.scene, "feature": top.feature, "samples": samples, "scenes": count,
                 "false_alarm": e.false_alarm, "miss": e.miss},
    )  # fmt: skip
