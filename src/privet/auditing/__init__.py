"""Auditing: a claim is tested by attack, deterministically, by samples of one step, and in one run."""

from privet.auditing.audit import audit
from privet.auditing.finding import Audit, Finding
from privet.auditing.mechanism import Mechanism, MechanismClaim, mechanism_claim
from privet.auditing.neighbours import NeighbouringPair, neighbouring_pairs

__all__ = [
    "Audit", "Finding", "Mechanism", "MechanismClaim", "NeighbouringPair", "audit", "mechanism_claim",
    "neighbouring_pairs",
]  # fmt: skip
