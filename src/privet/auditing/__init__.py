"""Auditing: a claim is tested by attack, deterministically, by samples of one step, and in one run."""

from privet.auditing.audit import audit
from privet.auditing.finding import Audit, Finding
from privet.auditing.mechanism import Declared, Mechanism, declared
from privet.auditing.scenes import Scene, scenes

__all__ = ["Audit", "Declared", "Finding", "Mechanism", "Scene", "audit", "declared", "scenes"]
