"""The rounds of a run: step, evaluate, save, stop. Only what is public is written down."""

import math
import time
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from torch import Tensor

from privet.accounting import Guarantee
from privet.accounting.sampling import Shuffled
from privet.ledger.meter import Meter
from privet.per_example.independence.model import check_losses
from privet.training import checkpoint
from privet.training.evaluation import Interrupt, Scores, evaluate, move_to
from privet.training.metrics import Metrics, scores_of_weights
from privet.training.processes import Group
from privet.training.progress import Progress
from privet.training.resume import save
from privet.training.run import BEST, mark_guarantee
from privet.training.setup import TrainingSetup, steps_per_epoch
from privet.training.training import Training

SAVE_SECONDS = 30.0  # between two checkpoints, where every evaluation would make one
CHECKED = 8  # batches whose losses are looked at, one example changed: one batch may have one class alone
EVALUATIONS = 100  # at most so many by default, however short the epochs


class TrainingLoop:
    """A training on its way. `end` says why it is over, once it is."""

    def __init__(
        self, training: Training, parts: TrainingSetup, *, folder: Path, steps_per_line: int, show_private: bool,
        watcher: Progress, interrupt: Interrupt, group: Group, kept: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        self._training, self._parts, self._folder, self._group = training, parts, folder, group
        self._first, self._reserve, self._watcher, self._interrupt = (
            training.steps_done, steps_per_line, watcher, interrupt,
        )  # fmt: skip
        self._raw = _Raw(parts.task.measure.name) if show_private else None
        self._meter = Meter(parts.plan, mark=lambda g: mark_guarantee(
            g, parts.plan, seeded=not training.noise_is_secret,
            non_private_preprocessing=parts.task.non_private_preprocessing
        ))  # fmt: skip
        self._metrics = Metrics(folder) if group.is_first else None
        epoch, least = steps_per_epoch(parts.plan), math.ceil(len(parts.plan.steps) / EVALUATIONS)
        self._every = parts.settings.evaluate_every or max(epoch, least)  # steps between two evaluations
        self._evaluated = -1  # the step of the last evaluation
        self._saved, self._saved_at = training.steps_done if kept else -1, -math.inf
        self._start, self._before = time.monotonic(), 0.0
        self.end: str | None = None
        if kept is not None and kept["more"]:  # nothing if a loop of the user's own has saved it
            self._before, self._evaluated = float(kept["more"]["seconds"]), int(kept["more"]["evaluated"])
            parts.judge.restore(kept["more"]["judge"])
        parts.optimizer.register_step_post_hook(lambda *_: parts.pace.follow(training.steps_done))

    def run(self) -> None:
        """Make the steps that are left, or as many as there are until a reason to stop."""
        training, parts = self._training, self._parts
        self._watcher.begin(number=training.steps_done, steps=len(training))
        try:
            parts.pace.catch_up(training.steps_done)
            for turn, (inputs, targets) in enumerate(training):
                outputs, targets = parts.model(move_to(inputs, parts.device)), move_to(targets, parts.device)
                if turn < CHECKED:
                    check_losses(parts.task.losses, outputs, targets)
                losses = parts.task.losses(outputs, targets)
                if self._raw is not None:
                    self._raw.add(losses, parts.task.measure.each(outputs, targets))
                if training.step(losses):
                    if self._raw is not None:
                        self._raw.add_scale(training.claimed_sensitivity)
                    if self._is_enough():
                        break
            if self.end is None and training.steps_done == len(training):
                self.end = "complete"
            self._finish()
        finally:
            self._watcher.end()
            if self._metrics is not None:
                self._metrics.close()

    # --- between two steps ---

    def _is_enough(self) -> bool:
        """What is due after a step; whether to stop."""
        number = self._training.steps_done
        self._watcher.step(number, self._spent_so_far, self._speed())
        if number // self._every > max(self._evaluated, self._first) // self._every and number < len(self._training):
            self.end = self._evaluate()
        if self._is_save_due():
            self._save()
        if self.end is not None:
            return True
        return self._can_stop() and self._group.any(self._interrupt.asked)

    def _finish(self) -> None:
        """Evaluate the weights at hand, if that is not done yet, and save them."""
        if self._evaluated < self._training.steps_done and self.end is not None:
            self._evaluate()
        if self._saved < self._training.steps_done:
            self._save()

    def _evaluate(self) -> str | None:
        """Score the weights on the held-out set and write it down; why to stop, if there is a reason."""
        number, judge, task = self._training.steps_done, self._parts.judge, self._parts.task
        scores = self._evaluate_held_out()
        self._evaluated = number
        best = judge.observe(scores)
        self._parts.pace.observe_loss(scores.loss)
        spent = self._meter.guarantee_at(self._charged_steps_at(number))
        line = {
            "step": number, "epoch": round(number / steps_per_epoch(self._parts.plan), 4), "held_out_loss": scores.loss,
            f"held_out_{task.measure.name}": scores.measure, "best": best, "epsilon": spent.epsilon,
            "delta": spent.delta, "label": spent.label, "private": self._training.noise_is_secret,
            "lr": float(self._parts.optimizer.param_groups[0]["lr"]), "seconds": round(self._elapsed_seconds(), 3),
            "examples_per_second": round(self._speed(), 1),
        }  # fmt: skip
        if self._raw is not None:
            line |= self._raw.take_averages()
        if self._metrics is not None:
            self._metrics.add(line)
            if best and self._parts.settings.keep == "best":
                self._save_best(line)
        self._watcher.show_evaluation(line, spent)
        return judge.stop_reason(scores)

    def _evaluate_held_out(self) -> Scores:
        training, parts = self._training, self._parts
        found: Scores | None = None
        if self._group.is_first:
            with training.ema_weights() if training.average is not None else nullcontext():
                found = evaluate(parts.model, parts.task, device=parts.device)
        told = self._group.broadcast_value(None if found is None else [found.loss, found.measure])
        return Scores.of(parts.task.measure, *told)

    # --- what is kept ---

    def _is_save_due(self) -> bool:
        number, every = self._training.steps_done, self._parts.settings.save_every
        if every is not None:
            return number // every > max(self._saved, self._first) // every
        return self._evaluated == number > self._saved and time.monotonic() - self._saved_at >= SAVE_SECONDS

    def _save(self) -> None:
        self._saved, self._saved_at = self._training.steps_done, time.monotonic()
        if self._metrics is not None:
            more = {
                "seconds": self._elapsed_seconds(), "evaluated": self._evaluated, "judge": self._parts.judge.state(),
            }  # fmt: skip
            save(self._training, scheduler=self._parts.pace.scheduler, extra=more)

    def _save_best(self, line: Mapping[str, Any]) -> None:
        """Put the weights beside the checkpoint, as the best so far, with their scores."""
        training = self._training
        checkpoint.save(
            self._folder / BEST, model=training.model, optimizer=training.optimizer,
            average=None if training.average is None else training.average.mean, extra=scores_of_weights(line),
        )  # fmt: skip

    def record_resume(self, weights_of: int) -> None:
        if self._metrics is not None:
            self._metrics.add({"step": self._first, "event": "resumed", "weights_of": weights_of})
        lost = self._first - weights_of
        also = f"; {lost} steps in between were lost, and stay charged" if lost else ""
        self._watcher.note(f"resumed at step {self._first} with the weights of step {weights_of}{also}")

    # --- figures ---

    def _spent_so_far(self) -> Guarantee:
        """What is charged by now, or a little more."""
        number = self._training.steps_done
        later = min(len(self._training), math.ceil(number / self._every) * self._every)
        return self._meter.quick_guarantee(self._charged_steps_at(number), self._charged_steps_at(later))

    def _charged_steps_at(self, number: int) -> int:
        """The steps that the ledger has charged once so many are over: those of a line are charged together."""
        lines = math.ceil((number - self._first) / self._reserve)
        return min(len(self._training), self._first + lines * self._reserve)

    def _can_stop(self) -> bool:
        """Whether a stop here loses nothing: no charged step is left, and no half of a shuffled epoch."""
        number, steps = self._training.steps_done, self._parts.plan.steps
        if isinstance(steps.sampling, Shuffled) and number % math.ceil(1 / steps[0].sample_rate):
            return False
        return self._charged_steps_at(number) == number

    def _elapsed_seconds(self) -> float:
        return self._before + time.monotonic() - self._start

    def _speed(self) -> float:
        """Planned examples a second in this process: the realised batches are nobody's business."""
        done = self._training.steps_done - self._first
        size = self._parts.plan.recipe.dataset_size
        planned = float(self._parts.plan.steps.sample_rates[self._first : self._first + done].sum()) * size
        return planned / max(time.monotonic() - self._start, 1e-9)


class _Raw:
    """Means over training records since the last look: not private, and named so."""

    def __init__(self, measure: str) -> None:
        self._keys = ("raw_train_loss", f"raw_train_{measure}")
        self._sums, self._count = [0.0, 0.0], 0
        self._scales: list[float] = []

    def add(self, losses: Tensor, measured: Tensor) -> None:
        self._sums[0] += float(losses.detach().sum())
        self._sums[1] += float(measured.detach().sum())
        self._count += len(losses)

    def add_scale(self, scale: float | None) -> None:
        """What a rule without a guarantee took for the sensitivity of a step; None of any other rule."""
        if scale is not None:
            self._scales.append(scale)

    def take_averages(self) -> dict[str, float]:
        count, sums, scales = max(self._count, 1), self._sums, self._scales
        self._sums, self._count, self._scales = [0.0, 0.0], 0, []
        found = {key: value / count for key, value in zip(self._keys, sums, strict=True)}
        return found | ({"raw_sensitivity": sum(scales) / len(scales)} if scales else {})
