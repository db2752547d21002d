"""Reporting: figures that say which label each number has."""
