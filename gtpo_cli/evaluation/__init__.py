"""Measure a policy without training it."""
