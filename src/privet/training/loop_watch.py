"""The user's own loop, watched: its forward passes are recorded, in some steps its independence of examples is checked.

Checked are the first eight steps and, drawn secretly, one of two hundred after them. A loop that begins to mix its
examples at step s is found before s + 598 with a chance of 95 %: (1 - 1/200)^598 < 0.05. A checked step costs two to
nine others, so that a long run is slower by 1 to 4 %.
"""

import secrets
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from privet.errors import InvalidValue, Unsupported
from privet.ledger.assumptions import LoopFacts
from privet.per_example.forward_record import tensors_in
from privet.per_example.independence.loop import LoopCheck
from privet.per_example.independence.loop_memory import LoopMemory
from privet.per_example.loop_record import recording
from privet.sampling.loading import PhysicalBatch
from privet.training.checks import LossFn, check_batch, check_losses

ALWAYS_CHECKED = 8  # steps of a process
ONE_OF = 200  # later steps
FOUND_WITHIN = 598  # steps, with a chance of 95 %


class Watch:
    """The user's forward pass on one physical batch, recorded until it is ended; with a check, if one is given."""

    def __init__(self, model: nn.Module, named: Mapping[str, nn.Parameter], check: LoopCheck | None = None) -> None:
        self.check, self.thread = check, threading.get_ident()
        self._context = recording(model, check=check, named=named)
        self.outputs = self._context.__enter__().outputs  # of the model's calls

    def end(self, *, keep: bool) -> None:
        """Stop; what was seen is for `clipped_sum`, or for nobody."""
        if keep:
            self._context.__exit__(None, None, None)
        else:
            self._context.__exit__(GeneratorExit, GeneratorExit(), None)


class LoopGuard:
    """What is known of a loop, and whether it may make its next step.

    Args:
        named: the model's trainable parameters.
        number: the first step of this process.
        dataset: the records; of those held as tensors it is known that they are.
        note: writes facts to the ledger.
    """

    def __init__(
        self, model: nn.Module, named: Mapping[str, nn.Parameter], facts: LoopFacts, *, number: int,
        dataset: Any, augmentations: int, note: Callable[[LoopFacts], None],
    ) -> None:  # fmt: skip
        private = tensors_in(getattr(dataset, "tensors", dataset))
        self._facts, self._made, self.memory = facts, 0, LoopMemory(private)
        self._model, self._named, self._views, self._note = model, named, augmentations, note
        self._checks, self._passed = 0, number  # checks of this process, and the step after the last that passed
        self._watch: Watch | None = None
        self._has_power = self._took_out = False  # in the physical batches of the step at hand

    @property
    def facts(self) -> LoopFacts:
        if self._made:
            self._facts, self._made = replace(self._facts, steps=self._facts.steps + self._made), 0
        return self._facts

    def wants_check(self) -> bool:
        """Whether the next step is checked: nobody can tell beforehand, once the first ones are over."""
        return self._checks < ALWAYS_CHECKED or secrets.randbelow(ONE_OF) == 0

    def open(self, piece: PhysicalBatch[Any], *, is_checked: bool) -> None:
        check = None
        if is_checked:
            check = LoopCheck(
                piece.data, rows=len(piece.indices), augmentations=self._views, memory=self.memory, model=self._model
            )
        self._watch = Watch(self._model, self._named, check)

    def close(self, losses: "Tensor | LossFn", batch: tuple[Any, ...], *, rows: int, number: int) -> None:
        """Raise unless these are losses of the batch at hand that may be clipped; then the recording is kept for them.

        Raises:
            Unsupported: examples are coupled, or the loop could not be followed in a checked step. If steps since the
                last check were made by this loop, they have no guarantee, and the ledger says so before this is raised.
        """
        if self._watch is not None and self._watch.thread != threading.get_ident():
            raise InvalidValue(
                "step was called in another thread than the one that its batch was handed out in. A forward pass is "
                "watched in one thread. Call model and training.step where the batch comes from."
            )
        watch, self._watch = self._watch, None
        fits = False
        try:
            if isinstance(losses, Tensor):
                check_losses(losses, rows, None if watch is None else watch.outputs)
            else:
                check_batch(losses, batch, rows)
            if watch is not None and watch.check is not None:
                self._verify(watch.check, losses, batch, number)
            fits = True
        finally:  # the model is itself again, whatever was wrong
            if watch is not None:
                watch.end(keep=fits and isinstance(losses, Tensor))

    def drop(self) -> None:
        """Stop watching; what was seen is for nobody. Another thread cannot: what watches lies on this one's stack."""
        if self._watch is not None and self._watch.thread == threading.get_ident():
            watch, self._watch = self._watch, None
            watch.end(keep=False)

    def _verify(self, check: LoopCheck, losses: "Tensor | LossFn", batch: tuple[Any, ...], number: int) -> None:
        try:
            if isinstance(losses, Tensor):
                check.check(losses)
            else:
                check.follow_function(self._model, losses, *batch)
        except Unsupported as error:
            since = self._passed if self.memory.suspect_since is None else self.memory.suspect_since
            if since < number:  # steps were released that nothing vouches for
                self.void(since, f"examples of a batch were not independent: found at step {number}")
            raise error
        self.memory.remember(check.seen, number)
        self._has_power |= check.has_power
        self._took_out |= check.seen.taken_out or check.seen.shapes_tell
        self.update_facts(
            not_followed=_merge_unique(self.facts.not_followed, check.seen.not_followed),
            outside=_merge_unique(self.facts.outside, list(self.memory.outside)),
        )

    # --- facts ---

    def end_step(self, number: int, *, is_made: bool) -> None:
        """Count a step that is over. It counts as checked if each physical batch was, and one had several examples."""
        has_power, took_out = self._has_power, self._took_out
        self._has_power = self._took_out = False
        self._made += is_made
        if not is_made:
            self.update_facts(lost=self.facts.lost + 1)
        elif has_power:
            self._checks, self._passed = self._checks + 1, number + 1
            self.update_facts(checked=self.facts.checked + 1, taken_out=self.facts.taken_out + took_out)

    def update_facts(self, *, durably: bool = False, **changes: Any) -> None:
        """Change what is known; `durably`, or where it weakens the guarantee, also in the ledger."""
        before = self.facts
        self._facts = replace(before, **changes)
        names = ("lost", "not_followed", "outside", "post_processing", "void_from")
        if durably or any(getattr(before, name) != getattr(self._facts, name) for name in names):
            self._note(self._facts)

    def void(self, since: int, reason: str) -> None:
        """From this step on the run has no guarantee."""
        found = self.facts.void(since, reason)
        self.update_facts(void_from=found.void_from, void_reason=found.void_reason)

    def record_post_processing(self, reason: str) -> None:
        """The user says that weights are changed by what was released alone."""
        if not isinstance(reason, str) or not 0 < len(reason.strip()) <= 300:
            raise InvalidValue(
                f"reason={reason!r} must be a few words. They are printed with the guarantee, as an assumption. Say "
                "what is done with the weights, and from what."
            )
        self.memory.refresh()
        self.update_facts(post_processing=_merge_unique(self.facts.post_processing, [reason.strip()]))


def _merge_unique(before: tuple[str, ...], more: list[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys([*before, *more]))[:50]
