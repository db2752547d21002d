"""The clipping engine: exact per-example clipping at close to the price of ordinary training."""

from privet.engine.explain import explain
from privet.engine.recording import recording
from privet.engine.summing import ClippedSum, clipped_sum

__all__ = ["ClippedSum", "clipped_sum", "explain", "recording"]
