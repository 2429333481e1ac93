"""Run folders and what stands in them: the folder, checkpoints, files that a stranger may have written, user code."""
