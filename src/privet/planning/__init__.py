"""Planning: a budget in, a certified schedule out, before any data is touched."""

from privet.planning.calibrate import calibrate
from privet.planning.methods import METHODS, Method, method
from privet.planning.plan import Plan, plan
from privet.planning.recipe import Recipe
from privet.planning.steps import Steps

__all__ = ["METHODS", "Method", "Plan", "Recipe", "Steps", "calibrate", "method", "plan"]
