"""Is each example treated by itself? Checks of models, of loops and of buffers."""
