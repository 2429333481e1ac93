"""GTPO's objective in TRL's trainer, which runs on several GPUs and machines. It needs the extra `trl`."""
