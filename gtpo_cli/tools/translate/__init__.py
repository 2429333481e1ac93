"""Translate scripts and configurations of TRL and Unsloth into recipes."""
