"""Tuning: private selection of settings among runs."""
