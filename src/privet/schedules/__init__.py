"""Schedules: how a quantity moves over training. A schedule is a shape; planning finds its height.

One spelling serves Python, TOML and the command line:

    2.0                                              the same at every step
    exponential:end=0.3                              from 1 to 0.3, geometric
    step:factor=0.5,every=9375,power=2               sigma^2 halves every 9375 steps
    piecewise:0=1,0.5=0.4,1=0.2                      straight lines between (share of the steps, value)
    table:noise.csv   table:noise.csv,column=sigma   table:1,0.9,0.8      one row per step
    my.module:Shape:teeth=4                          a user's own class, by its address
    cosine:end=0.5 * time:decay=0.01                 the product
    constant until 0.25 then linear:end=0.1          one after the other; each part counts its own steps

Parentheses group. TOML may also say `{kind = "exponential", end = 0.3}`, and a list is a product (a list of
numbers is a table). Where a curve is evaluated, how long it is held and on which power: see `Curve`.
"""

from privet.schedules.base import Schedule, Values, register, registry, schedule, schedule_values, to_spec
from privet.schedules.shapes import (
    Constant,
    Cosine,
    Curve,
    Cyclic,
    Exponential,
    InverseTime,
    Join,
    Linear,
    Piecewise,
    Product,
    StepDecay,
    Table,
)

__all__ = [
    "Constant", "Cosine", "Curve", "Cyclic", "Exponential", "InverseTime", "Join", "Linear", "Piecewise", "Product",
    "Schedule", "StepDecay", "Table", "Values", "register", "registry", "schedule", "schedule_values", "to_spec",
]  # fmt: skip
