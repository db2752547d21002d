"""Accounting: what a ledger of releases costs, by which theorem, and which way the number errs.

Importing this package registers the accountants; those of papers, without a proof, are read when they are asked for.
"""

from privet.accounting import composition, exchange, gdp, rdp, tradeoff
from privet.accounting.accountant import Accountant, compose_ledgers, register, registry, spent
from privet.accounting.epsilon_curve import EpsilonCurve, epsilon_curve
from privet.accounting.guarantee import Budget, Guarantee
from privet.accounting.ledger import Ledger, Step
from privet.accounting.pld.accountant import delta_at

registry.seal()  # any other accountant is from outside: what it says is a claim

__all__ = [
    "Accountant", "Budget", "EpsilonCurve", "Guarantee", "Ledger", "Step", "compose_ledgers", "composition", "delta_at",
    "epsilon_curve", "exchange", "gdp", "rdp", "register", "registry", "spent", "tradeoff",
]  # fmt: skip
