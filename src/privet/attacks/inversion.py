"""Inversion: an image is moved until its gradient is the one that was seen. All victims are moved at once."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from privet import _check
from privet.attacks.base import Observation, Reconstruction, register, squared_distances, sum_tensors
from privet.errors import Unsupported

FRAMES = (0, 5, 10, 20, 50, 100, 300)  # iterations that are kept for the picture
PATTERN = 4  # the seed is a random patch, so many times along each side
# (points (R, D), rows (R,)) -> values (R,), slopes (R, D): row r of the points is a point of problem rows[r].
Evaluate = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]

HISTORY = 20
ARMIJO, WOLFE = 1e-4, 0.9
TRIALS = 25  # evaluations of one line search
LITTLE, OFTEN = 1e-6, 10  # a value that fell by so small a share, so many times in a row, has settled


@dataclass(frozen=True, slots=True, kw_only=True)
class _Try:
    """One run from one seed, of some victims."""

    inputs: Tensor
    labels: Tensor
    loss: Tensor
    iterations: Tensor
    evaluations: Tensor
    frames: dict[int, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Inversion:
    """What inversions share: all victims in pieces, each from several seeds.

    An attacker who knows of the clipping (`aware`) clips the gradients of its own images too.
    """

    iterations: int = 300
    restarts: int = 1
    aware: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        _check.whole(iterations=self.iterations, restarts=self.restarts)
        _check.whole(least=0, seed=self.seed)

    def run(self, observation: Observation) -> Reconstruction:
        """The try with the lowest loss is kept, whatever the truth."""
        begun = time.perf_counter()
        if len(observation.shape) != 3:
            raise Unsupported(
                f"shape={observation.shape} is not an image's (channels, height, width). Inversion moves pixels. Use "
                "the attack `prior`."
            )
        told = observation if self.aware else replace(observation, rule=None)
        source = torch.Generator().manual_seed(self.seed)
        tries = [self._invert_all_once(told, source) for _ in range(self.restarts)]
        loss = torch.stack([found.loss.nan_to_num(torch.inf) for found in tries])
        kept, rows = loss.argmin(0), torch.arange(observation.size)

        def choose(parts: list[Tensor]) -> Tensor:
            return torch.stack(parts)[kept, rows]

        return Reconstruction(
            inputs=choose([found.inputs for found in tries]), labels=choose([found.labels for found in tries]),
            loss=loss[kept, rows], iterations=choose([found.iterations for found in tries]),
            evaluations=torch.stack([found.evaluations for found in tries]).sum(0), seconds=time.perf_counter() - begun,
            frames={n: choose([found.frames[n] for found in tries]) for n in FRAMES},
        )  # fmt: skip

    def _invert_all_once(self, seen: Observation, source: torch.Generator) -> _Try:
        seeds, labels = _initial_images(seen, source), _initial_labels(seen, source)
        parts = [
            self._invert_once(seen, rows, seeds[rows], labels[rows])
            for rows in torch.split(torch.arange(seen.size), max(1, seen.rows // seen.batch))
        ]
        joined = {
            word: torch.cat([getattr(part, word) for part in parts]) for word in _Try.__slots__ if word != "frames"
        }
        return _Try(**joined, frames={n: torch.cat([part.frames[n] for part in parts]) for n in FRAMES})

    def _invert_once(self, seen: Observation, rows: Tensor, seed: Tensor, labels: Tensor) -> _Try:
        """One run from one seed, of these victims."""
        raise NotImplementedError


@register("invert-l2")
@dataclass(frozen=True, slots=True, kw_only=True)
class InvertL2(_Inversion):
    """L-BFGS on the squared distance of gradients, |sum_b clip(grad(x_b, y_b)) - update|^2 / |update|^2.

    From a patterned seed, with the label read off the gradient of the last bias (for one record), or found along with
    the image otherwise.
    Sources: Zhu, Liu, Han 2019, arXiv:1906.08935 (distance, L-BFGS, labels found along); Zhao, Mopuri, Bilen 2020,
    arXiv:2001.02610 (label of the bias); Wei and Liu 2021 (patterned seed, 300 iterations).
    """

    def _invert_once(self, seen: Observation, rows: Tensor, seed: Tensor, labels: Tensor) -> _Try:
        update = seen.of(rows)
        size = sum_tensors([u.flatten(1).square().sum(1) for u in update.values()]).clamp(min=1e-30)
        image, known = seed[0].numel(), not _is_open(seen)

        def evaluate(points: Tensor, which: Tensor) -> tuple[Tensor, Tensor]:
            with torch.enable_grad():
                moved = points.detach().requires_grad_()
                x, y = moved[:, :image].view(-1, *seed.shape[1:]), labels[which]
                if not known:
                    y = torch.softmax(moved[:, image:].view(y.shape), -1)
                wanted = {n: u[which] for n, u in update.items()}
                far = squared_distances(_noiseless_update(seen, x, y), wanted) / size[which]
                return far.detach(), torch.autograd.grad(far.sum(), moved)[0]

        start = seed.flatten(1) if known else torch.cat([seed.flatten(1), labels.flatten(1)], 1)
        found = minimise(evaluate, start, iterations=self.iterations, enough=1e-12, frames=FRAMES)
        chosen = labels if known else found.points[:, image:].view(labels.shape)
        return _Try(
            inputs=found.points[:, :image].view(seed.shape), labels=chosen.argmax(-1), loss=found.values,
            iterations=found.iterations, evaluations=found.evaluations,
            frames={n: p[:, :image].view(seed.shape) for n, p in found.frames.items()},
        )  # fmt: skip


@register("invert-cosine")
@dataclass(frozen=True, slots=True, kw_only=True)
class InvertCosine(_Inversion):
    """Adam on the angle between gradients, 1 - cos(grad, update) + smooth TV(x), by the signs of its slope.

    TV is the mean absolute difference of neighbouring pixels; images stay in [0, 1]. The rate falls to a tenth after
    3/8, 5/8 and 7/8 of the iterations. It copes with ReLU, where L-BFGS does not.
    Source: Geiping, Bauermeister, Dröge, Moeller 2020, arXiv:2003.14053, eq. (4) and its experiments.
    """

    rate: float = 0.1
    smooth: float = 1e-2

    def __post_init__(self) -> None:
        _Inversion.__post_init__(self)  # slots make another class, which super() does not know
        _check.positive(rate=self.rate)
        _check.non_negative(smooth=self.smooth)

    def _invert_once(self, seen: Observation, rows: Tensor, seed: Tensor, labels: Tensor) -> _Try:
        update, known = seen.of(rows), not _is_open(seen)
        x, z = seed.clone().requires_grad_(), labels.clone().requires_grad_(not known)
        optimizer = torch.optim.Adam([x] if known else [x, z], lr=self.rate)
        turns = [self.iterations * part // 8 for part in (3, 5, 7)]
        paces = torch.optim.lr_scheduler.MultiStepLR(optimizer, turns, gamma=0.1)
        best, best_loss, frames = x.detach().clone(), torch.full((len(rows),), torch.inf), {0: seed.clone()}
        for number in range(1, self.iterations + 1):
            y = z if known else torch.softmax(z, -1)
            with torch.enable_grad():
                angle = _cosine_distance(_noiseless_update(seen, x, y), update)
                (angle + self.smooth * _total_variation(x)).sum().backward()  # type: ignore[no-untyped-call]
            better = angle.detach() < best_loss
            best[better], best_loss[better] = x.detach()[better], angle.detach()[better]
            assert x.grad is not None
            x.grad.sign_()
            optimizer.step()
            optimizer.zero_grad()
            paces.step()
            with torch.no_grad():
                x.clamp_(0, 1)
            if number in FRAMES:
                frames[number] = best.clone()
        count = torch.full((len(rows),), self.iterations)
        return _Try(
            inputs=best, labels=z.detach().argmax(-1), loss=best_loss, iterations=count, evaluations=count,
            frames={n: frames.get(n, best) for n in FRAMES},
        )  # fmt: skip


# --- what both share --------------------------------------------------------------------------------


def _noiseless_update(seen: Observation, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """The update that records (R, batch, *shape) would make, without noise: (R, *shape) for each parameter."""
    grads = seen.gradients(x.flatten(0, 1), y.flatten(0, 1))
    return {name: g.view(len(x), seen.batch, *g.shape[1:]).sum(1) for name, g in grads.items()}


def _initial_images(seen: Observation, source: torch.Generator) -> Tensor:
    """(N, batch, *shape): a random patch of a quarter of the side, repeated."""
    channels, height, width = seen.shape
    patch = torch.rand(
        seen.size, seen.batch, channels, -(-height // PATTERN), -(-width // PATTERN), generator=source
    )  # fmt: skip
    return patch.repeat(1, 1, 1, PATTERN, PATTERN)[..., :height, :width].to(_state_dtype(seen)).contiguous()


def _initial_labels(seen: Observation, source: torch.Generator) -> Tensor:
    """(N, batch, classes): the label as a row with one 1, or random scores to begin with if it is open."""
    found = seen.labels
    if found is None and not _is_open(seen):
        found = label_from_bias(seen)
    if found is None:
        return torch.randn(seen.size, seen.batch, seen.classes, generator=source).to(_state_dtype(seen))
    return F.one_hot(found, seen.classes).to(_state_dtype(seen))


def label_from_bias(seen: Observation) -> Tensor | None:
    """The label of each victim's one record, (N, 1), from the gradient p - e_label of the last bias; None without one.

    All but the label's entry are positive, so the least is it. Source: Zhao, Mopuri, Bilen 2020, arXiv:2001.02610.
    """
    biases = [name for name, seen_there in seen.update.items() if seen_there.shape[1:] == (seen.classes,)]
    return seen.update[biases[-1]].argmin(1, keepdim=True) if biases else None


def _is_open(seen: Observation) -> bool:
    """Whether labels have to be found along with the images."""
    return seen.labels is None and (seen.batch > 1 or label_from_bias(seen) is None)


def _state_dtype(seen: Observation) -> torch.dtype:
    return next(iter(seen.state.values())).dtype


def _cosine_distance(grads: dict[str, Tensor], update: "dict[str, Tensor] | object") -> Tensor:
    assert isinstance(update, dict)
    inner = sum_tensors([(grads[n] * u).flatten(1).sum(1) for n, u in update.items()])
    own = sum_tensors([grads[n].flatten(1).square().sum(1) for n in update]).clamp(min=1e-30).sqrt()
    other = sum_tensors([u.flatten(1).square().sum(1) for u in update.values()]).clamp(min=1e-30).sqrt()
    return 1 - inner / (own * other)


def _total_variation(x: Tensor) -> Tensor:
    """The mean absolute difference of neighbouring pixels, (R,), summed over the images of a victim."""
    down, across = (x[..., 1:, :] - x[..., :-1, :]).abs(), (x[..., 1:] - x[..., :-1]).abs()
    return down.mean((-3, -2, -1)).sum(-1) + across.mean((-3, -2, -1)).sum(-1)


@register("analytic")
@dataclass(frozen=True, slots=True, kw_only=True)
class Analytic:
    """One record through a first linear layer: dL/dW = dL/db x^T, so x = sum_i dL/db_i dL/dW_i / sum_i (dL/db_i)^2.

    Least squares over all units: exact without noise, and the average over units with it. Clipping scales both alike
    and drops out. Source: Phong, Aono, Hayashi, Wang, Moriai 2018, section 3 (one unit).
    """

    def run(self, observation: Observation) -> Reconstruction:
        begun = time.perf_counter()
        if observation.batch != 1:
            raise Unsupported(
                f"batch_size={observation.batch} is more than one example. Their inputs are mixed in the first layer. "
                "Use invert-l2, or batch 1."
            )
        weight, bias = _first_layer(observation)
        found = torch.einsum("no,noi->ni", bias, weight) / bias.square().sum(1, keepdim=True).clamp(min=1e-30)
        inputs = found.view(observation.size, 1, *observation.shape)
        guessed = observation.labels if observation.labels is not None else label_from_bias(observation)
        labels = torch.zeros(observation.size, 1, dtype=torch.int64) if guessed is None else guessed
        one_hot = torch.nn.functional.one_hot(labels[:, 0], observation.classes).to(found)
        loss = squared_distances(observation.gradients(inputs[:, 0], one_hot), observation.update)
        ones = torch.ones(observation.size, dtype=torch.int64)
        return Reconstruction(
            inputs=inputs, labels=labels, loss=loss.detach(), iterations=ones, evaluations=ones,
            seconds=time.perf_counter() - begun,
        )  # fmt: skip


def _first_layer(observation: Observation) -> tuple[Tensor, Tensor]:
    first, update = next(iter(observation.update)), observation.update
    bias = first.removesuffix("weight") + "bias"
    if first.endswith("weight") and bias in update and update[first].shape[2:] == (math.prod(observation.shape),):
        return update[first], update[bias]
    raise Unsupported(
        f"parameter={first!r} is not the weight of a linear layer with a bias on the whole input. There is no closed "
        "form for it. Use invert-l2, or a model such as mlp."
    )


# --- L-BFGS on many problems at once: one evaluation moves all on, each in its own line search -------


@dataclass(slots=True, kw_only=True)
class Minimum:
    """Where each problem ended, (N, ...), and what it cost."""

    points: Tensor
    values: Tensor
    iterations: Tensor
    evaluations: Tensor
    frames: dict[int, Tensor] = field(default_factory=dict)  # points after so many iterations


def minimise(
    evaluate: Evaluate, start: Tensor, *, iterations: int, enough: "float | Tensor" = 0.0,
    frames: Sequence[int] = (),
) -> Minimum:  # fmt: skip
    """The minimum of each of N functions of D numbers from `start` (N, D), by L-BFGS with a weak Wolfe line search.

    A problem ends at `iterations`, at a value of at most `enough`, when its value has settled, or when its line search
    finds nothing better; from then on it costs nothing. Line search: bisection of Lewis and Overton 2013, which needs
    no case distinctions and so runs on all rows alike.

    >>> goal = torch.tensor([[3.0, -1.0], [0.5, 2.0]])
    >>> scale = torch.tensor([1.0, 40.0])
    >>> def bowl(x, rows):
    ...     return (scale * (x - goal[rows]) ** 2).sum(1), 2 * scale * (x - goal[rows])
    >>> minimise(bowl, torch.zeros(2, 2), iterations=30, enough=1e-10).points.round(decimals=3)
    tensor([[ 3.0000, -1.0000],
            [ 0.5000,  2.0000]])
    """
    state = _State(evaluate, start)
    limit = torch.as_tensor(enough, dtype=start.dtype).expand(len(start))
    found = {0: start.clone()} if 0 in frames else {}
    found |= {number: start.clone() for number in frames if number > 0}
    while True:
        active = (~state.stuck & (state.iterations < iterations) & (state.values > limit)).nonzero().view(-1)
        if not len(active):
            break
        accepted = state.advance(active)
        for number, kept in found.items():
            rows = accepted[state.iterations[accepted] <= number] if number else accepted[:0]
            kept[rows] = state.points[rows]
    return Minimum(
        points=state.points, values=state.values, iterations=state.iterations, evaluations=state.evaluations,
        frames=found,
    )  # fmt: skip


class _State:
    """All problems, each somewhere in its line search along its own direction."""

    def __init__(self, evaluate: Evaluate, start: Tensor) -> None:
        self.evaluate, size = evaluate, len(start)
        self.points = start.clone()
        self.values, self.slopes = evaluate(self.points, torch.arange(size))
        self.steps = start.new_zeros(HISTORY, *start.shape)  # s of the past, newest last
        self.turns = start.new_zeros(HISTORY, *start.shape)  # y
        self.weights = start.new_zeros(HISTORY, size)  # 1 / (s y); 0 where there is no past
        self.scales = start.new_ones(size)
        self.iterations = torch.zeros(size, dtype=torch.int64)
        self.evaluations = torch.ones(size, dtype=torch.int64)
        self.stuck = ~self.values.isfinite()
        self.directions = start.new_zeros(start.shape)
        self.low, self.high, self.length = (start.new_zeros(size) for _ in range(3))
        self.trials = torch.zeros(size, dtype=torch.int64)
        self.idle = torch.zeros(size, dtype=torch.int64)  # steps in a row that gained little
        self._choose_direction(torch.arange(size))

    def advance(self, rows: Tensor) -> Tensor:
        """One evaluation for each of `rows`; gives those that made a step."""
        points = self.points[rows] + self.length[rows, None] * self.directions[rows]
        values, slopes = self.evaluate(points, rows)
        self.evaluations[rows] += 1
        self.trials[rows] += 1
        falls = (self.slopes[rows] * self.directions[rows]).sum(1)
        lower = values.isfinite() & (values <= self.values[rows] + ARMIJO * self.length[rows] * falls)
        flat = (slopes * self.directions[rows]).sum(1) >= WOLFE * falls
        tired = self.trials[rows] >= TRIALS
        good = lower & (flat | tired)
        self._change_length(rows[~good], too_far=~lower[~good])
        self.stuck[rows[tired & ~lower]] = True
        self._accept(rows[good], points[good], values[good], slopes[good])
        return rows[good]

    def _change_length(self, rows: Tensor, *, too_far: Tensor) -> None:
        """Another length: within the bracket, or twice as far while it is open."""
        self.high[rows[too_far]] = self.length[rows[too_far]]
        self.low[rows[~too_far]] = self.length[rows[~too_far]]
        middle = (self.low[rows] + self.high[rows]) / 2
        self.length[rows] = torch.where(self.high[rows].isfinite(), middle, 2 * self.low[rows])

    def _accept(self, rows: Tensor, points: Tensor, values: Tensor, slopes: Tensor) -> None:
        step, turn = points - self.points[rows], slopes - self.slopes[rows]
        product = (step * turn).sum(1)
        bends = product > 1e-10 * (turn * turn).sum(1)  # otherwise the curvature is noise
        kept = rows[bends]
        for past, new in ((self.steps, step[bends]), (self.turns, turn[bends]), (self.weights, 1 / product[bends])):
            past[:-1, kept] = past[1:, kept].clone()
            past[-1, kept] = new
        self.scales[kept] = product[bends] / (turn[bends] ** 2).sum(1)
        gained_little = self.values[rows] - values <= LITTLE * self.values[rows].abs()
        self.idle[rows] = torch.where(gained_little, self.idle[rows] + 1, 0)
        self.points[rows], self.values[rows], self.slopes[rows] = points, values, slopes
        self.iterations[rows] += 1
        self._choose_direction(rows)

    def _choose_direction(self, rows: Tensor) -> None:
        """A new direction for each of `rows`, by the two loops of L-BFGS; the slope itself where there is no past."""
        steps, turns, weights = self.steps[:, rows], self.turns[:, rows], self.weights[:, rows]
        q = self.slopes[rows].clone()
        alphas = []
        for s, y, w in zip(steps.flip(0), turns.flip(0), weights.flip(0), strict=True):
            alphas.append(w * (s * q).sum(1))
            q -= alphas[-1][:, None] * y
        q *= self.scales[rows, None]
        for s, y, w, alpha in zip(steps, turns, weights, reversed(alphas), strict=True):
            q += (alpha - w * (y * q).sum(1))[:, None] * s
        norm = self.slopes[rows].norm(dim=1)
        new = weights[-1] == 0
        self.directions[rows] = -q
        self.length[rows] = torch.where(new, 1 / norm.clamp(min=1e-30), torch.ones_like(norm))
        self.low[rows], self.high[rows], self.trials[rows] = 0.0, torch.inf, 0
        uphill = ~((self.slopes[rows] * self.directions[rows]).sum(1) < 0)
        self.stuck[rows[uphill | (self.idle[rows] >= OFTEN)]] = True
