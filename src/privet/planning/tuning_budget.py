"""Tuning in a recipe: by which law runs are tried and charged, and what must be done for the guarantee to hold.

trials_mean = 10              # the best of a random number of runs
trial_count_distribution = "geometric"      # or "poisson"

trials = 3                    # or a number that everybody knows
trial_count_distribution = "fixed"          # all three may be seen; or "disjoint": each on its own part of the data
"""

from dataclasses import dataclass

from privet import _check
from privet.accounting import Ledger
from privet.accounting.guarantee import format_outward
from privet.accounting.selection import LAWS, RANDOM, check_mean, repeated_runs
from privet.errors import InvalidValue

MOST_TRIALS = 10**6


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialBudget:
    """A law for the number of runs, and that number or its mean.

    >>> TrialBudget(trial_count_distribution="geometric", runs=10.0).name
    'best of geometric(10) runs'
    """

    trial_count_distribution: str
    runs: float

    @property
    def is_random(self) -> bool:
        """Whether the number of runs is drawn, and kept secret."""
        return self.trial_count_distribution in RANDOM

    @property
    def name(self) -> str:
        """What is charged, in a few words: they follow the accountant's name in a guarantee."""
        if self.is_random:
            return f"best of {self.trial_count_distribution}({self.runs:g}) runs"
        runs = f"{self.runs:.0f} run{'s' if self.runs > 1 else ''}"
        return f"all of {runs}" if self.trial_count_distribution == "fixed" else f"{runs} on disjoint parts"

    def charged_ledger(self, one_run: Ledger) -> Ledger:
        """The releases that the law charges for one record, given those of one run."""
        return repeated_runs(one_run, int(self.runs)) if self.trial_count_distribution == "fixed" else one_run

    def rule(self, epsilon: float) -> str:
        """What the user has to do, in one line; `epsilon` is that of the whole."""
        if self.is_random:
            none = " (of none: a model fixed beforehand)" if self.trial_count_distribution == "poisson" else ""
            return (
                f"draw the number of runs from {self.trial_count_distribution}({self.runs:g}) in secret; publish the "
                f"best run alone{none}, never how many there were; score on public data"
            )
        if self.trial_count_distribution == "fixed":
            return "every run may be published; score on public data"
        parts = f"{self.runs + 1:.0f} disjoint parts of the data: a run on each of {self.runs:.0f}"
        return (
            f"{parts}, the last to choose: score = right answers there, chance of a run ~ exp(e score / 2), "
            f"e = {format_outward(epsilon, up=False)}"
        )


def parse_trial_budget(
    *, trials: int | None, trials_mean: float | None, trial_count_distribution: str | None
) -> TrialBudget | None:
    """The tuning that three keys of a recipe mean; None if there is none.

    >>> parse_trial_budget(trials=3, trials_mean=None, trial_count_distribution=None)
    TrialBudget(trial_count_distribution='fixed', runs=3.0)
    """
    if trials is None and trials_mean is None and trial_count_distribution is None:
        return None
    law = "fixed" if trial_count_distribution is None and trials is not None else trial_count_distribution
    if law is None:
        raise InvalidValue(
            f"trials_mean={trials_mean!r} needs a law: a number of runs is charged by how it is drawn. "
            f"Give trial_count_distribution='{RANDOM[0]}' or '{RANDOM[1]}'."
        )
    if not isinstance(law, str):
        raise InvalidValue(f"trial_count_distribution={law!r} must be one of {', '.join(LAWS)}.")
    _check.one_of(LAWS, trial_count_distribution=law)
    needed, other = ("trials_mean", "trials") if law in RANDOM else ("trials", "trials_mean")
    given = {"trials": trials, "trials_mean": trials_mean}
    if given[other] is not None:
        raise InvalidValue(
            f"{other}={given[other]!r} does not apply to trial_count_distribution={law!r}, whose number of runs is "
            f"{'drawn at random' if law in RANDOM else 'fixed'}. Give {needed} alone."
        )
    runs = given[needed]
    if runs is None:
        raise InvalidValue(
            f"{needed} is missing. trial_count_distribution={law!r} needs it. Give {needed}=10, for example."
        )
    if needed == "trials":
        _check.whole(trials=runs)  # type: ignore[arg-type]
    else:
        check_mean(runs)
    if runs > MOST_TRIALS:
        raise InvalidValue(f"{needed}={runs!r} must be at most {MOST_TRIALS:.0e}. Use fewer.")
    return TrialBudget(trial_count_distribution=law, runs=float(runs))


def check_accountant(tuning: TrialBudget | None, *, accountant: str | None, uncertified: bool) -> None:
    """Raise if the tuning has no theorem with this accountant, or is none of the paper's."""
    if tuning is None:
        return
    if uncertified:
        raise InvalidValue(
            f"uncertified=True and trial_count_distribution={tuning.trial_count_distribution!r} are both given, but no "
            "paper's formula charges for tuning. Leave out one of them."
        )
    if tuning.is_random and accountant not in (None, "rdp"):
        raise InvalidValue(
            f"accountant={accountant!r} has no theorem for "
            f"trial_count_distribution={tuning.trial_count_distribution!r}. It is a "
            "statement about Rényi divergences. Use accountant='rdp', or leave it out."
        )
    if accountant == "proactive":
        raise InvalidValue(
            "accountant='proactive' does not see the number of steps, so it cannot charge for trials. "
            "Use accountant='pld'."
        )
