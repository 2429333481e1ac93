"""The same objective on engines that span machines: TRL (`trl.py`) and verl (`verl.py`). Each needs its extra."""
