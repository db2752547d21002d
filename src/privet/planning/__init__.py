"""Planning: a budget in, a certified schedule out, before any data is touched."""

from privet.planning.calibrate import calibrate
from privet.planning.compare import compare
from privet.planning.frontier import ahead, extend_rounds
from privet.planning.methods import METHODS, Method, method
from privet.planning.plan import Plan, plan
from privet.planning.planned_steps import PlannedSteps
from privet.planning.recipe import Recipe
from privet.planning.search import search
from privet.planning.utility import Profile, utility

__all__ = [
    "METHODS", "Method", "Plan", "PlannedSteps", "Profile", "Recipe", "ahead", "calibrate", "compare", "extend_rounds",
    "method", "plan", "search", "utility",
]  # fmt: skip
