"""Planning: a budget in, a certified schedule out, before any data is touched."""

from privet.planning.ahead import ahead
from privet.planning.calibrate import calibrate
from privet.planning.compare import compare
from privet.planning.methods import METHODS, Method, method
from privet.planning.more import more
from privet.planning.plan import Plan, plan
from privet.planning.recipe import Recipe
from privet.planning.search import search
from privet.planning.steps import Steps
from privet.planning.utility import Profile, utility

__all__ = [
    "METHODS",
    "Method",
    "Plan",
    "Profile",
    "Recipe",
    "Steps",
    "ahead",
    "calibrate",
    "compare",
    "method",
    "more",
    "plan",
    "search",
    "utility",
]
