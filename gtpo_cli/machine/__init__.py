"""What a recipe comes to on a machine: its job, what the machine lacks, the memory and time that it needs."""
