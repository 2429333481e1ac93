"""Export a run's policy as files that others can load without gtpo."""
