"""Measuring a policy without training it."""
