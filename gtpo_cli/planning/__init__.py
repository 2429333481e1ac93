"""What a run needs, and whether this machine has it."""
