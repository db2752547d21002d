"""Layer rules, one file per family. Importing this package registers them all."""

from privet.engine.layer import broadcast, conv, embedding, fallback, linear, norm, recurrent

__all__ = ["broadcast", "conv", "embedding", "fallback", "linear", "norm", "recurrent"]
