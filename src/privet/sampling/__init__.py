"""Sampling: which records take part in a step, and how they reach the loop."""
