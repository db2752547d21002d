"""Noise: a clipped sum in, a release out."""
