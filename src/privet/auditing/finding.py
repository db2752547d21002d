"""What an audit says: one finding for each kind of test, and a verdict over all of them."""

from dataclasses import dataclass, field
from typing import Any, Literal

from privet.accounting import Guarantee
from privet.accounting.guarantee import format_outward

Verdict = Literal["consistent", "inconclusive", "violation"]
ORDER: tuple[Verdict, ...] = ("consistent", "inconclusive", "violation")
ALARM = 1e-3  # how often a kind of test accuses a sound mechanism


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one kind of test found. `significance` is the chance that it accuses a mechanism that keeps its claim.

    `empirical` is a direct lower bound on epsilon, whatever the mechanism; `mu` is only a Gaussian reading, beside the
    claim's own `mu_claimed`. `samples_needed` is given where the test could not decide.
    """

    kind: str
    verdict: Verdict
    says: str
    reasons: tuple[str, ...] = ()
    significance: float = ALARM
    mu: float | None = None
    mu_claimed: float | None = None
    empirical: Guarantee | None = None
    samples_needed: int | None = None
    seconds: float = 0.0
    numbers: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return {
            "kind": self.kind, "verdict": self.verdict, "says": self.says, "reasons": list(self.reasons),
            "confidence": 1 - self.significance, "mu": self.mu, "mu_claimed": self.mu_claimed,
            "empirical": None if self.empirical is None else self.empirical.as_dict(),
            "samples_needed": self.samples_needed, "seconds": self.seconds, **self.numbers,
        }  # fmt: skip

    def __str__(self) -> str:
        lines = [f"{self.kind:<8} {self.verdict}: {self.says}"]
        lines += [f"         - {reason}" for reason in self.reasons]
        if self.empirical is not None:
            g = self.empirical
            least = format_outward(g.epsilon, up=False, digits=4)
            lines.append(f"         epsilon >= {least} at delta {g.delta_text} [empirical: {g.method}]")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """All findings about one mechanism; the verdict is the worst of them."""

    mechanism: str
    claim: str
    findings: tuple[Finding, ...]

    @property
    def verdict(self) -> Verdict:
        return max((finding.verdict for finding in self.findings), key=ORDER.index, default="inconclusive")

    def finding(self, kind: str) -> Finding:
        return next(found for found in self.findings if found.kind == kind)

    def as_dict(self) -> dict[str, Any]:
        return {
            "mechanism": self.mechanism, "claim": self.claim, "verdict": self.verdict,
            "findings": [finding.as_dict() for finding in self.findings],
        }  # fmt: skip

    def __str__(self) -> str:
        head = f"{self.verdict}: {self.mechanism}\n  claim: {self.claim}"
        return "\n".join([head, *("  " + str(found).replace("\n", "\n  ") for found in self.findings)])


def empirical_guarantee(
    epsilon: float, *, delta: float, significance: float, method: str, steps: int, sampling: str
) -> Guarantee:
    """A lower bound found by attack, with its confidence, as a guarantee that is labelled so."""
    confidence = f"confidence {100 * (1 - significance):g} %"
    return Guarantee(
        epsilon=epsilon, epsilon_lower=epsilon, delta=delta, label="empirical", method=f"{method}, {confidence}",
        sampling=sampling, steps=steps,
    )  # fmt: skip
