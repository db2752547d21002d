"""Noise on clipped sums."""
