"""Layer rules, one file per family. Importing this package registers them all."""

from privet.per_example.layers import base, conv, elementwise, embedding, linear, norm, recurrent

__all__ = ["base", "conv", "elementwise", "embedding", "linear", "norm", "recurrent"]
