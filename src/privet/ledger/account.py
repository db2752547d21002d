"""A charge: without one no noise is drawn for a step, and only an account that has charged the step gives one."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, Protocol

from privet import _check
from privet.accounting import Guarantee, Ledger, Step
from privet.accounting.ledger import MechanismSpec
from privet.errors import BudgetExceeded, InvalidValue
from privet.ledger.assumptions import NOT_RECORDED, LoopFacts
from privet.ledger.file import LedgerFile
from privet.ledger.format import LedgerPosition, check_dataset, make_header
from privet.ledger.reading import read_ledger
from privet.ledger.total import admit_run
from privet.planning import Plan
from privet.planning.pricing import PricedRecipe, guarantee_for, try_guarantee

_KEY = object()


class Charge:
    """Step `number` is charged: its noise may be drawn, once.

    >>> charge = issue_uncharged(Step(noise_multiplier=2.0, clipping_norm=0.5))
    >>> kind = charge.step.mechanism
    >>> charge.spend(kind)
    >>> charge.spend(kind)
    Traceback (most recent call last):
        ...
    privet.errors.InvalidValue: step=0 has had its noise. A second release would cost as much as the first, and is not
    charged. Release each step once.
    """

    __slots__ = ("_is_spent", "clip", "number", "step")

    def __init__(self, key: object, number: int, step: Step, clipping_norm: float) -> None:
        if key is not _KEY:
            raise InvalidValue("a Charge is not made by hand. Charge the step: account.charge(number) gives one.")
        self.number, self.step = number, step
        self.clip = clipping_norm  # in force: where it follows earlier releases, it is not the step's
        self._is_spent = False

    def spend(self, mechanism: MechanismSpec) -> None:
        """Raise if this is not the kind of noise that was charged, or if it was drawn before."""
        if mechanism != self.step.mechanism:
            raise InvalidValue(
                f"mechanism={mechanism!r} is not that of step={self.number}, {self.step.mechanism!r}. It would cost "
                "what was not charged. Draw the planned noise."
            )
        if self._is_spent:
            raise InvalidValue(
                f"step={self.number} has had its noise. A second release would cost as much as the first, and is not "
                "charged. Release each step once."
            )
        self._is_spent = True

    def __reduce__(self) -> NoReturn:
        raise InvalidValue("a Charge has no copies: its step is released once. Charge another step.")


def issue(number: int, step: Step, clipping_norm: float) -> Charge:
    """The charge of a step that is in a ledger now. For accounts alone."""
    return Charge(_KEY, number, step, clipping_norm)


def issue_uncharged(step: Step, clipping_norm: float | None = None) -> Charge:
    """A charge that is in no ledger: for `release` by hand, whose caller charges, and where nothing is given away."""
    return Charge(_KEY, 0, step, step.clipping_norm if clipping_norm is None else clipping_norm)


_NONE = "guarantee: none, "
InForce = Callable[[float], float]


class Account(Protocol):
    """What `Training` asks for each step. A step that was let through is charged, whatever becomes of it."""

    @property
    def next_step(self) -> int:
        """The step that may be charged next."""

    @property
    def charged(self) -> int:
        """How many steps are charged, done or not."""

    @property
    def position(self) -> LedgerPosition | None:
        """The place in the ledger on disk; None if there is none."""

    def charge(self, number: int, in_force: InForce = float) -> Charge:
        """Let step `number` of the plan happen: when this returns, it is charged, and its noise may be drawn once.

        `in_force` gives the clip in force from the plan's: it may follow earlier releases, and changes no cost.
        """

    @property
    def facts(self) -> LoopFacts | None:
        """What was last noted of the loop, also by those that made the run before; None if nothing was."""

    def note(self, facts: LoopFacts) -> None:
        """Keep what is known of the loop, in place of what was kept before: on the disk when this returns."""

    def ledger(self) -> Ledger:
        """All that is charged."""

    def close(self) -> None:
        """Let nothing more happen."""


class InMemory:
    """Charges that are gone with the process.

    >>> from privet import plan
    >>> p = plan(delta=1e-5, dataset_size=1000, batch_size=10, steps=2, noise_multiplier=2.0, solve="epsilon")
    >>> account = InMemory(p)
    >>> account.charge(0).step == p.steps[0]
    True
    >>> account.next_step, account.ledger().steps
    (1, 1)
    """

    def __init__(self, plan: Plan) -> None:
        self._plan, self._ledger, self._closed = plan, Ledger(), False
        self.facts: LoopFacts | None = None
        self.next_step = 0

    @property
    def charged(self) -> int:
        return self.next_step

    @property
    def position(self) -> None:
        return None

    def charge(self, number: int, in_force: InForce = float) -> Charge:
        step, charged = steps_to_charge(self._plan, number, in_force)
        if self._closed:
            raise InvalidValue("training is closed. Nothing can be charged. Make a new one.")
        if number != self.next_step:
            raise BudgetExceeded(
                f"step={number} is not the plan's next one, {self.next_step}. It would cost what was not planned. "
                "Do the plan's steps in their order, each once."
            )
        self._ledger.add(charged)
        self.next_step = number + 1
        return issue(number, step, charged.clipping_norm)

    def note(self, facts: LoopFacts) -> None:
        if self.facts is not None and self.facts.void_from is not None:
            facts = facts.void(self.facts.void_from, self.facts.void_reason)
        self.facts = facts

    def ledger(self) -> Ledger:
        return self._ledger.first(self.next_step)  # a copy: nobody else may add to ours

    def close(self) -> None:
        self._closed = True


class OnDisk:
    """Charges in the folder of a run, each on the disk before its noise is drawn, `steps_per_line` steps to a line."""

    def __init__(self, folder: Path, file: LedgerFile, plan: Plan, *, steps_per_line: int = 1) -> None:
        self._folder, self._file, self._plan, self._reserve = folder, file, plan, steps_per_line

    @property
    def next_step(self) -> int:
        return self._file.next_step

    @property
    def charged(self) -> int:
        return self._file.charged

    @property
    def position(self) -> LedgerPosition:
        return self._file.position

    def charge(self, number: int, in_force: InForce = float) -> Charge:
        step, charged = steps_to_charge(self._plan, number, in_force)
        left = len(self._plan.steps) - number
        if self._reserve > 1 and number == self._file.next_step == self._file.charged:
            self._file.reserve(min(self._reserve, left))
        self._file.charge(number, charged)
        return issue(number, step, charged.clipping_norm)

    @property
    def facts(self) -> LoopFacts | None:
        return self._file.facts

    def note(self, facts: LoopFacts) -> None:
        self._file.note(facts)

    def ledger(self) -> Ledger:
        return read_ledger(self._folder).ledger

    def close(self) -> None:
        self._file.close()


def steps_to_charge(plan: Plan, number: int, in_force: InForce) -> tuple[Step, Step]:
    """A step as planned, and as it is charged: with the clip in force.

    Raises:
        BudgetExceeded: all steps of the plan are charged.
    """
    check_left(number, plan)
    step = plan.steps[number]
    clip = in_force(step.clipping_norm)
    return step, step if clip == step.clipping_norm else replace(step, clipping_norm=clip)


def open_account(
    plan: Plan, *, out: "str | Path | None", ledger: LedgerFile | None, steps_per_line: int, seeded: bool,
    preprocessing_is_private: bool = True, dataset: str | None = None,
) -> Account:  # fmt: skip
    """The account of a run: a new ledger in the folder `out`, an open one of it, or memory where there is no folder.

    `preprocessing_is_private` is False where something was read off the records before the first step: no proof covers
    it. `dataset` names the records. Where a folder above has a total for them, the run goes on within it or not at all.
    """
    _check.whole(steps_per_line=steps_per_line)
    check_dataset(dataset)
    if out is None:
        if ledger is not None:
            raise InvalidValue("ledger is given without out. What is spent is read from its folder. Give out as well.")
        if dataset is not None:
            raise InvalidValue(
                f"dataset_name={dataset!r} is given without out. What the run costs would be in no ledger, and in no "
                "sum of runs on these records. Give out as well."
            )
        return InMemory(plan)
    if ledger is None:
        given: dict[str, Any] = {
            "steps_per_line": steps_per_line, "seeded": seeded, "preprocessing_is_private": preprocessing_is_private,
            "dataset": dataset,
        }  # fmt: skip
        with admit_run(Path(out), make_header(plan, run="", **given)) as register:
            begun = LedgerFile.create(out, plan, **given)
            try:
                register(begun.header)  # where there is a total for its records: both, or none
            except BaseException:
                begun.close()  # it is counted all the same: it lies in the folder
                raise
        return OnDisk(Path(out), begun, plan, steps_per_line=steps_per_line)
    sound = preprocessing_is_private and not plan.is_unsound
    if (ledger.header.plan, ledger.header.seeded, ledger.header.sound) != (plan.hash, seeded, sound):
        raise InvalidValue(
            "ledger is of another plan, or of a run with another kind of randomness or of records. Its lines would not "
            "say what happens. Go on with the plan, the kind of generator and the records that the run began with."
        )
    if dataset not in (None, ledger.header.dataset):
        raise InvalidValue(
            f"dataset_name={dataset!r} is not the one that the run began with, {ledger.header.dataset!r}. Its charges "
            "are on those records. Leave it out."
        )
    with admit_run(Path(out), ledger.header) as register:
        register(ledger.header)
    return OnDisk(Path(out), ledger, plan, steps_per_line=min(steps_per_line, ledger.header.reserve))


def check_left(number: int, plan: Plan) -> None:
    """Raise once all steps of the plan are charged."""
    if number >= len(plan.steps):
        raise BudgetExceeded(
            f"step={number} is beyond the plan's {len(plan.steps)}. Its budget is spent. Make a plan with more steps."
        )


def guarantee_of(ledger: Ledger, plan: Plan) -> Guarantee:
    """What is proven of the steps in a ledger of one run of `plan`: by pld, else by the plan's own accountant."""
    budget = plan.recipe.budget
    return try_guarantee(ledger, budget) or guarantee_for(ledger, budget, PricedRecipe(plan.recipe).accountant)


def mark_uncertified(guarantee: Guarantee, why: str) -> Guarantee:
    """The same figure as a mere claim that says why there is no guarantee."""
    return replace(guarantee, label="claimed", epsilon_lower=None, method=f"{guarantee.method}; {_NONE}{why}")


def qualify(guarantee: Guarantee, facts: LoopFacts | None, *, own_loop: bool = True) -> Guarantee:
    """The guarantee of a run with the assumptions of its loop; a mere claim if the loop has voided it.

    `own_loop` is what a run without facts is taken for: a loop of the user's own, of which nothing was recorded.
    """
    if facts is None:
        return replace(guarantee, assumptions=(NOT_RECORDED,)) if own_loop else guarantee
    guarantee = replace(guarantee, assumptions=facts.assumptions())
    return mark_uncertified(guarantee, facts.void_text) if facts.void_text else guarantee


def uncertified_reason(guarantee: Guarantee) -> str:
    """Why there is no guarantee, as `without_proof` was told; empty if there is one."""
    return guarantee.method.partition(_NONE)[2]


def preprocessing_reason(non_private_preprocessing: str) -> str:
    """Why there is no guarantee on a dataset that something was read off."""
    return f"{non_private_preprocessing}: read off the records without noise"


def facts_at_start(account: Account, *, own_loop: bool) -> LoopFacts:
    """What is known of the loop of a run that begins, or goes on.

    Steps that were charged after the last word on them were made, as far as anybody knows, and one batch may have been
    looked at and left: whoever stops a process can have chosen to.
    """
    known = account.facts
    if known is None:
        return LoopFacts(own_loop=own_loop, steps=max(0, account.charged - 1), lost=min(1, account.charged))
    unknown = account.charged - known.steps - known.lost
    if unknown <= 0:
        return known
    return replace(known, steps=known.steps + unknown - 1, lost=known.lost + 1)
