"""Diagnosis: what a model, a plan and an optimizer will do, before training."""
