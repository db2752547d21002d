"""Replays: one loop on two datasets that differ in one record, with the same coins and the same releases.

What the loop gives away is then the clipped sum of each step, and whatever else an observer of the run sees: weights,
buffers, learning rates. A sound loop moves a sum by the record's bound at most, in steps in which the record takes
part, and nothing else at all. `Bare` is DP-SGD written down once more, one example at a time and without any check of
what the loop does: it shows which loops are unsound, whatever `Training` thinks of them.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from privet import Training, plan
from privet.errors import PrivetError
from privet.noise import release as engine_release
from privet.noise.randomness import seeded
from privet.sampling.loading import physical_batches
from privet.sampling.samplers import sampler
from privet.sampling.users import user_sampler
from privet.training.weights import WeightAverage

SIZE, WIDTH, CLASSES, BATCH, STEPS, CLIP, NOISE = 60, 4, 3, 12, 12, 0.5, 2.0
SHORT = 7  # steps of a replay by `Bare`
COINS = 187  # the seed: record 0 takes part in steps 1, 2 and 5, the last record in 4 to 6, and no batch is small
ROUNDING = 1e-4


def a_plan(**given: Any) -> Any:
    return plan(**{"delta": 1e-3, "dataset_size": SIZE, "batch_size": BATCH, "steps": STEPS, "noise_multiplier": NOISE,
                   "clipping_norm": CLIP, "solve": "epsilon", **given})  # fmt: skip


PLAN = a_plan()


def records(outlier: int | None = None) -> tuple[Tensor, Tensor]:
    """Ordinary records, most of one class; one may be an outlier."""
    generator = torch.Generator().manual_seed(3)
    x = 0.5 + 0.5 * torch.randn(SIZE, WIDTH, generator=generator)
    y = torch.randint(CLASSES, (SIZE,), generator=generator) * (torch.rand(SIZE, generator=generator) < 0.3)
    if outlier is not None:
        x[outlier], y[outlier] = -20.0, 1
    return x, y


def linear() -> nn.Module:
    return nn.Linear(WIDTH, CLASSES)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.5)


@dataclass(frozen=True, kw_only=True)
class Loop:
    """A training loop and what it runs on.

    Args:
        run: the loop itself, given a Scene.
        point: which edge of the guarantee it is about; 0 for a sound loop.
        dataset: made from the records (x, y).
        options: of Training.
        record: the one in which two datasets differ.
        is_marked: the loop takes numbers out of torch or keeps something: the guarantee's assumptions say that nobody
            looked, so it may be accepted.
        is_drawn: random numbers are drawn for each row, so that leaving a row out moves those of others.
        is_exact: Training's sums are those of `Bare`.
    """

    name: str
    run: Callable[["Scene"], None]
    point: int = 0
    model: Callable[[], nn.Module] = linear
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] = sgd
    dataset: Callable[[Tensor, Tensor], Any] = lambda x, y: (x, y)
    options: Mapping[str, Any] = field(default_factory=dict)
    plan: Any = PLAN
    record: int = 0
    is_marked: bool = False
    is_drawn: bool = False
    is_exact: bool = True


@dataclass(kw_only=True)
class Scene:
    """What a loop has at hand: `training`, the model, its optimizer, all records, and room of its own."""

    training: Any
    model: nn.Module
    optimizer: torch.optim.Optimizer
    x: Tensor
    y: Tensor
    begun: int = 0  # batches that the loop saw, counted by loops that leave some


@dataclass(kw_only=True)
class Trace:
    """What an observer of a run sees at each release and after the last, and the sums that noise hides."""

    sums: list[Tensor] = field(default_factory=list)
    seen: list[Tensor] = field(default_factory=list)  # weights, buffers and learning rates
    took_part: list[bool] = field(default_factory=list)
    training: Any = None
    scene: Any = None
    error: BaseException | None = None

    def look(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        state = [t.detach().double().flatten() for t in (*model.parameters(), *model.buffers())]
        rates = torch.tensor([float(group["lr"]) for group in optimizer.param_groups], dtype=torch.float64)
        self.seen.append(torch.cat([*state, rates]))

    def release(self, sums: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Keep the sum; what is released in its place is the same in every run."""
        self.sums.append(torch.cat([t.detach().double().flatten() for t in sums.values()]))
        numbers = torch.Generator().manual_seed(len(self.sums))
        return {name: 0.05 * torch.randn(t.shape, generator=numbers).to(t) for name, t in sums.items()}


def fresh(loop: Loop, *, has_outlier: bool) -> tuple[nn.Module, torch.optim.Optimizer, Tensor, Tensor]:
    torch.manual_seed(1)
    model = loop.model()
    x, y = records(loop.record if has_outlier else None)
    return model, loop.optimizer(model), x, y


def run(loop: Loop, *, is_checked: bool = True, monkeypatch: Any) -> Trace:
    """The loop by Training, on ordinary records; what it raises is kept."""
    model, optimizer, x, y = fresh(loop, has_outlier=False)
    trace = Trace()

    def add_noise(grads: Mapping[str, Tensor], **_: Any) -> dict[str, Tensor]:
        trace.look(model, optimizer)
        return trace.release(grads)

    with monkeypatch.context() as patch:
        patch.setattr(engine_release, "add_noise", add_noise)
        if not is_checked:
            patch.setattr("privet.training.loop_watch.LoopGuard.wants_check", lambda _: False)
        training = Training(model, optimizer, loop.dataset(x, y), loop.plan, randomness=seeded(COINS), **loop.options)
        trace.training = training
        torch.manual_seed(2)
        try:
            trace.scene = Scene(training=training, model=model, optimizer=optimizer, x=x, y=y)
            loop.run(trace.scene)
            training.close()
        except PrivetError as error:
            trace.error = error
    trace.look(model, optimizer)
    return trace


def bare(loop: Loop, *, has_outlier: bool = False, is_left_out: bool = False) -> Trace:
    """The loop by `Bare`."""
    model, optimizer, x, y = fresh(loop, has_outlier=has_outlier)
    trace = Trace()
    training = Bare(
        model, optimizer, loop.dataset(x, y), loop.plan, trace=trace, record=loop.record, is_left_out=is_left_out,
        **loop.options,
    )  # fmt: skip
    torch.manual_seed(2)
    loop.run(Scene(training=training, model=model, optimizer=optimizer, x=x, y=y))
    trace.look(model, optimizer)
    return trace


def violations(loop: Loop) -> list[str]:
    """What one record moves though it must not: an outlier in place of it, then (if no row draws numbers) none."""
    outlier = bare(loop, has_outlier=True)
    found = compare(bare(loop), outlier, allowed=2 * CLIP)
    if not found and not loop.is_drawn:
        found = compare(outlier, bare(loop, has_outlier=True, is_left_out=True), allowed=CLIP)
    return found


def compare(one: Trace, other: Trace, *, allowed: float) -> list[str]:
    found: list[str] = []
    if len(one.sums) != len(other.sums):
        found.append(f"{len(one.sums)} releases, and {len(other.sums)}")
    for number, (a, b, took_part) in enumerate(zip(one.sums, other.sums, one.took_part, strict=False)):
        far, most = float((a - b).norm()), allowed if took_part else 0.0
        if not far <= most + ROUNDING * CLIP:
            found.append(f"step {number}: the sum moves by {far / CLIP:.4g} bounds, {most / CLIP:g} are allowed")
    for number, (a, b) in enumerate(zip(one.seen, other.seen, strict=False)):
        if not torch.equal(a, b):
            found.append(f"step {number}: weights, buffers or learning rate differ by {float((a - b).abs().max()):.3g}")
    expected = len(one.took_part) * BATCH / SIZE
    if sum(one.took_part) > expected + 4 * expected**0.5:
        found.append(f"the record takes part in {sum(one.took_part)} steps, {expected:.1f} are expected")
    return found


class Bare:
    """DP-SGD as one would write it: batches by coins, one gradient at a time, clipped, summed. It believes the loop."""

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, dataset: Any, plan: Any, *, trace: Trace,
        record: int = 0, is_left_out: bool = False, users: Any = None, max_physical_batch_size: int | None = None,
        augmentations: int = 1, ema_decay: float | None = None, **_: Any,
    ) -> None:  # fmt: skip
        self.model, self.optimizer, self.dataset, self.plan = model, optimizer, dataset, plan
        self._named = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._trace, self._record, self._is_left_out, self._users = trace, record, is_left_out, users
        self._physical, self._views = max_physical_batch_size, augmentations
        self.average = None if ema_decay is None else WeightAverage(self._named, decay=ema_decay)
        self._coins, self.steps_done = seeded(COINS), 0
        self._sum, self._piece, self._took_part = None, None, False

    def __len__(self) -> int:
        return min(SHORT, len(self.plan.steps))

    def __iter__(self) -> Iterator[Any]:
        return self.until(len(self))

    def split(self, indices: Tensor, most: int) -> tuple[Tensor, ...]:
        return tuple(torch.split(indices, most // self._views * self._views))

    def _indices(self) -> Iterator[Tensor]:
        n = len(self.dataset[0]) if isinstance(self.dataset, tuple) else len(self.dataset)
        chosen = (
            sampler(self.plan, records=n, start=self.steps_done, randomness=self._coins) if self._users is None
            else user_sampler(self.plan, users=self._users, start=self.steps_done, randomness=self._coins)
        )  # fmt: skip
        for indices in chosen:
            own = indices == self._record
            self._took_part = bool(own.any())
            yield (indices[~own] if self._is_left_out else indices).repeat_interleave(self._views)

    def until(self, end: int) -> Iterator[Any]:
        class Chosen:
            __iter__ = staticmethod(self._indices)
            split = staticmethod(self.split)

        self._sum = None
        for piece in physical_batches(self.dataset, Chosen(), physical=self._physical):
            if self.steps_done >= end:
                return
            self._piece = piece
            if len(piece.indices):
                yield piece.data
            else:
                self._release({name: torch.zeros_like(p) for name, p in self._named.items()})

    def step(self, losses: Any, *batch: Any) -> bool:
        if not isinstance(losses, Tensor):
            losses = losses(call(self.model, batch[0]), batch[1])
        assert losses.shape == (len(self._piece.indices),)
        self._sum = add(self._sum, self._clipped(losses.reshape(-1, self._views).mean(1)))
        if not self._piece.is_last:
            return False
        whole, self._sum = self._sum, None
        self._release(whole)
        return True

    def _clipped(self, losses: Tensor) -> dict[str, Tensor]:
        params, total = list(self._named.values()), None
        for loss in losses:
            grads = torch.autograd.grad(loss, params, retain_graph=True, allow_unused=True)
            grads = [torch.zeros_like(p) if g is None else g for p, g in zip(params, grads, strict=True)]
            norm = torch.stack([g.norm() for g in grads]).norm()
            scale = min(1.0, CLIP / max(float(norm), 1e-12))
            total = add(total, {name: g * scale for name, g in zip(self._named, grads, strict=True)})
        return total

    def _release(self, whole: Mapping[str, Tensor]) -> None:
        self._trace.look(self.model, self.optimizer)
        self._trace.took_part.append(self._took_part)
        for name, grad in self._trace.release(whole).items():
            self._named[name].grad = grad
        self.optimizer.step()
        self.model.zero_grad()
        self.steps_done += 1
        if self.average is not None:
            self.average.add()

    def post_processing(self, _: str) -> Any:
        return nullcontext()

    @contextmanager
    def ema_weights(self) -> Iterator[nn.Module]:
        with self.average.swap_weights():
            yield self.model

    def accept_state(self) -> None: ...

    def close(self) -> None: ...


def call(model: nn.Module, x: Any) -> Any:
    return model(**x) if isinstance(x, dict) else model(*x) if isinstance(x, tuple) else model(x)


def add(a: "dict[str, Tensor] | None", b: dict[str, Tensor]) -> dict[str, Tensor]:
    return b if a is None else {name: a[name] + b[name] for name in b}


class Loops(list[Loop]):
    """Loops, listed where they are written."""

    def whole(self, point: int = 0, **given: Any) -> Callable[[Callable[[Scene], None]], Callable[[Scene], None]]:
        """A loop that is given its Scene."""

        def put(function: Callable[[Scene], None]) -> Callable[[Scene], None]:
            self.append(Loop(name=function.__name__, run=function, point=point, **given))
            return function

        return put

    def body(self, point: int = 0, **given: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """The inside of a loop: (model, *batch) to losses, or to a loss function, inputs and targets."""

        def put(function: Callable[..., Any]) -> Callable[..., Any]:
            def whole(scene: Scene) -> None:
                for batch in scene.training:
                    parts = batch if isinstance(batch, (tuple, list)) else (batch,)
                    losses = function(scene.model, *parts)
                    scene.training.step(*losses) if isinstance(losses, tuple) else scene.training.step(losses)

            self.append(Loop(name=function.__name__, run=whole, point=point, **given))
            return function

        return put
