"""Per-example gradients: the gradient of each example in a batch, exact, for any model with independent examples."""

from privet.per_example.gradients import explain
from privet.per_example.loop_record import recording

__all__ = ["explain", "recording"]
