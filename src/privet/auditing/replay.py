"""Replay: neighbouring datasets under the same coins and the same noise. What differs must be what is declared.

Frozen noise cancels in the difference of two neighbours, and only the query is left: it may differ by the declared
sensitivity. Two noises on one dataset cancel the query, and only the noise is left: its scale may not depend on the
record. Both hold whatever is inside the mechanism, as long as all its randomness is drawn from what it is given, and as
often with the record as without it: this is more than privacy asks, and a sound mechanism that does otherwise (one that
draws again until a value fits) is accused for certain. Samples (`step`) judge it fairly.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from privet._text import first_of
from privet.auditing.finding import Finding
from privet.auditing.mechanism import (
    FrozenRandomness,
    Mechanism,
    MechanismClaim,
    Released,
    Run,
    flatten_releases,
    prepare,
)
from privet.auditing.neighbours import NeighbouringPair

Floats = NDArray[np.float64]
Progress = Callable[[str], None]

COINS = 160  # draws of coins by which participation is judged: two releases at rate 1/4 that share one are seen
MOST_COINS = 5000  # draws of coins until the record takes part
ROUNDING = 1e-3  # of a difference, relatively: outputs are float32
RARE = 1e-5  # false-alarm rate of each of the few checks that are statistical, over all scenes; fixed seeds: repeatable
CHECKS = 5  # of them
MOST = 5  # reasons shown


@dataclass(slots=True)
class Pair:
    """The two neighbours of a scene, ready to run, and the noise they declare (or show, where they declare none)."""

    scene: NeighbouringPair
    which: MechanismClaim
    without: Run
    with_: Run
    stds: dict[str, float] | None = field(default=None)
    rare: float = RARE  # false-alarm rate of each statistical check in this scene

    @classmethod
    def of(cls, mechanism: Mechanism, scene: NeighbouringPair) -> "Pair":
        pair = cls(scene, mechanism.claim, prepare(mechanism, scene.without), prepare(mechanism, scene.with_))
        if pair.which.std is None:
            one, other = pair.without(FrozenRandomness(0, 1)), pair.without(FrozenRandomness(0, 2))
            pair.stds = {name: _noise_scale(one[name] - other[name]) for name in one}
        return pair

    def difference(self, coins: int, noise: int) -> Floats:
        """With less without, under one randomness, over the noise: (steps, entries)."""
        return self.flatten(self.with_(FrozenRandomness(coins, noise))) - self.flatten(
            self.without(FrozenRandomness(coins, noise))
        )

    def flatten(self, released: Released) -> Floats:
        return flatten_releases(released, self.which, self.stds)


def _noise_scale(difference: "object") -> float:
    values = np.asarray(difference, dtype=np.float64)
    return max(float(np.sqrt((values**2).mean() / 2)), 1e-12)


def replay(mechanism: Mechanism, scenes: Sequence[NeighbouringPair], *, progress: Progress | None = None) -> Finding:
    """Every scene under frozen randomness. A violation names the scene and what differs."""
    start = time.perf_counter()
    reasons: list[str] = []
    furthest, coins = 0.0, _participating_coins(mechanism, scenes[0], reasons)
    for scene in scenes:
        if progress is not None:
            progress(scene.name)
        pair = Pair.of(mechanism, scene)
        pair.rare = RARE / len(scenes)  # noises of scenes are the same only if none of them follows public data
        for coin in coins:
            found, moved = _compare_pair(pair, coin)
            reasons += [f"{scene.name}: {reason}" for reason in found]
            furthest = max(furthest, moved)
    reasons = list(first_of(reasons, MOST))
    many = f"{len(scenes)} scenes" if len(scenes) > 1 else scenes[0].name
    ratio = f"{furthest:.4g} times" if furthest < 1e6 else "more than a million times"
    says = f"{many}; one record moves the query by {ratio} what is declared"
    return Finding(
        kind="replay", verdict="violation" if reasons else "consistent", says=says, reasons=tuple(reasons),
        significance=CHECKS * RARE, seconds=time.perf_counter() - start,
        numbers={"scenes": len(scenes), "furthest": furthest},
    )  # fmt: skip


def most_unlike_pairs(mechanism: Mechanism, scenes: Sequence[NeighbouringPair], count: int) -> list[NeighbouringPair]:
    """The scenes in which neighbours look most unlike under frozen randomness: where samples are best spent."""
    ranked = sorted(((_pair_distance(Pair.of(mechanism, scene)), -k) for k, scene in enumerate(scenes)), reverse=True)
    return [scenes[-k] for _, k in ranked[:count]]


def _pair_distance(pair: Pair) -> float:
    """Roughly the mu by which neighbours differ: the way moved over noise and sampling, and the change of scale."""
    coins = range(4 if pair.which.is_sampled else 1)
    moved = np.nan_to_num(np.stack([pair.difference(coin, 1) for coin in coins]), posinf=1e6, neginf=-1e6)
    way = moved.mean(0) / max(_norm(moved.mean(0)), 1e-12)
    others = np.var([float((pair.flatten(pair.without(FrozenRandomness(coin, 1))) * way).sum()) for coin in coins])
    with_, without = _noise_difference(pair.with_, pair, 0), _noise_difference(pair.without, pair, 0)
    scale = math.log(max(_norm(with_), 1e-9) / max(_norm(without), 1e-9)) * math.sqrt(without.size / 2)
    return round(min(_norm(moved) / math.sqrt(len(moved)), 1e6) / math.sqrt(1 + others) + abs(scale), 3)


# --- the checks --------------------------------------------------------------------------------------


def _compare_pair(pair: Pair, coins: int) -> tuple[list[str], float]:
    """What is wrong under these coins, and how far the query moved over what is declared."""
    one, other = FrozenRandomness(coins, 1), FrozenRandomness(coins, 1)
    with_, without = pair.flatten(pair.with_(one)), pair.flatten(pair.without(other))
    reasons = []
    if not (np.isfinite(with_).all() and np.isfinite(without).all()):
        return ["what is released is not finite"], math.inf
    if one.draws != other.draws:
        reasons.append(
            f"the record changes how often something is drawn: {len(one.draws)} with it, {len(other.draws)} without"
        )
    allowed = np.array([1 / step.noise_multiplier for step in pair.which.steps])
    moved = np.linalg.norm(with_ - without, axis=1) / allowed
    reasons += _check_noise(pair, coins)
    if float(moved.max()) > 1 + ROUNDING and not any("noise" in reason for reason in reasons):
        reasons.append(f"the query moves by {moved.max():.4g} times the declared sensitivity")
    return reasons, float(moved.max())


def _check_noise(pair: Pair, coins: int) -> list[str]:
    """The noise alone: alike in both worlds, not smaller than declared, another one at each step."""
    with_, without = _noise_difference(pair.with_, pair, coins), _noise_difference(pair.without, pair, coins)
    reasons = []
    if not _nearly_equal(with_, without):
        ratio = _norm(with_) / max(_norm(without), 1e-300)
        reasons.append(f"the record changes the noise, {ratio:.4g} times its size without")
    for step, row in enumerate(without):
        used = row[row != 0]
        if pair.which.std is not None and len(used) < len(row) and not len(used):
            reasons.append(f"step {step} has no noise")
        elif pair.which.std is not None and stats.chi2.cdf((used**2).sum(), len(used)) < pair.rare / len(without):
            reasons.append(f"the noise is {math.sqrt((used**2).mean()):.4g} times what is declared")
            break
    reasons += _correlated_steps(without, pair.rare)
    return reasons if reasons or pair.which.std is None else _check_tensors(pair, coins)


def _check_tensors(pair: Pair, coins: int) -> list[str]:
    """The noise of each released tensor by itself: a bare layer, or one noise for all, is lost in the whole."""
    one, other = (pair.without(FrozenRandomness(coins, noise)) for noise in (1, 2))
    found = {name: _difference(one[name], other[name]) for name in one if pair.which.std_of(name) is not None}
    for name, values in found.items():
        if not values.all():  # under two noises, rounding may make an entry the same: under three it is bare
            third = _difference(one[name], pair.without(FrozenRandomness(coins, 3))[name])
            if ((values == 0) & (third == 0)).any():
                return [f"some of {name!r} has no noise"]
        scaled = values / (math.sqrt(2) * (pair.which.std_of(name) or 1.0))
        own = scaled - scaled.mean() if len(scaled) > 1 else scaled
        if len(own) and stats.chi2.cdf((own**2).sum(), max(len(own) - 1, 1)) < pair.rare / len(found):
            return [f"the noise of {name!r} spreads by {math.sqrt((own**2).mean()):.4g} times what is declared"]
    return _correlated_tensors(pair, found)


def _difference(one: Tensor, other: Tensor) -> Floats:
    found: Floats = (one.detach().double() - other.detach().double()).cpu().numpy().ravel()
    return np.nan_to_num(found, nan=1.0)


def _correlated_tensors(pair: Pair, found: dict[str, Floats]) -> list[str]:
    """Tensors of one step whose noises are correlated, as where a generator is seeded anew for each layer."""
    groups: dict[tuple[int, int], list[Floats]] = {}
    for name, values in found.items():
        groups.setdefault((pair.which.step_of.get(name, 0), len(values)), []).append(values)
    for many in groups.values():
        if _correlated_steps(np.stack(many), pair.rare / len(groups)):
            return ["the noise of two tensors is the same"]
    return []


def _nearly_equal(one: Floats, other: Floats) -> bool:
    return _norm(one - other) <= ROUNDING * max(_norm(one), _norm(other))


def _correlated_steps(noise: Floats, rare: float) -> list[str]:
    """Steps whose noises are correlated: normal with deviation 1 / sqrt(entries) if they are independent."""
    if len(noise) < 2 or noise.shape[1] < 8 or not noise.any(1).all():
        return []
    pairs = np.asarray(np.corrcoef(noise))[np.triu_indices(len(noise), 1)]
    limit = stats.norm.isf(rare / 2 / len(pairs)) / math.sqrt(noise.shape[1])
    top = float(np.abs(pairs).max())
    return [f"the noise of two steps is the same: correlation {top:.3g}"] if top > limit else []


def _noise_difference(run: Run, pair: Pair, coins: int) -> Floats:
    """Two noises under the same coins, their difference over sqrt(2): as large as one."""
    found: Floats = (
        pair.flatten(run(FrozenRandomness(coins, 1))) - pair.flatten(run(FrozenRandomness(coins, 2)))
    ) / math.sqrt(2)
    return np.nan_to_num(found)


def _participating_coins(mechanism: Mechanism, scene: NeighbouringPair, reasons: list[str]) -> list[int]:
    """Coins under which the record takes part; and whether it takes part more often than is charged for.

    Under independent coins at rate q, T steps together use the record j times or more with the chance of a binomial
    law. More than that is a violation: two releases that share a coin, or a record that always takes part.
    """
    which = mechanism.claim
    if not which.is_sampled:
        return [0]
    pair = Pair.of(mechanism, scene)
    moved = np.stack([np.linalg.norm(pair.difference(coin, 1), axis=1) > ROUNDING for coin in range(COINS)])
    rate, steps = max(step.sample_rate for step in which.steps), len(which.steps)
    times = moved.sum(1)
    is_steady = _nearly_equal(_noise_difference(pair.with_, pair, 0), _noise_difference(pair.without, pair, 0))
    judged = steps if is_steady else 0  # noise that follows the record moves everything
    for least in range(1, judged + 1):
        chance, seen = float(stats.binom.sf(least - 1, steps, rate)), int((times >= least).sum())
        if stats.binom.sf(seen - 1, COINS, chance) < RARE / steps:
            reasons.append(
                f"{scene.name}: under {seen} of {COINS} coins the record takes part in {least} or more of {steps} "
                f"steps, where rate {rate:g} means {chance * COINS:.1f}"
            )
            break
    used = np.flatnonzero(times)
    return [int(used[0])] if len(used) else _search_coins(pair, rate)


def _search_coins(pair: Pair, rate: float) -> list[int]:
    """Coins under which the record takes part, where the rate is small; the first ones if it never does."""
    for coin in range(COINS, COINS + min(MOST_COINS, int(10 / rate))):
        if float(np.abs(pair.difference(coin, 1)).max()) > ROUNDING:
            return [coin]
    return [0]


def _norm(values: Floats) -> float:
    return float(np.linalg.norm(values))
