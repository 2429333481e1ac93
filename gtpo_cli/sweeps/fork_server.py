"""Set up the server that forks a sweep's runs (processes.py). Only the server imports this module, before any other.

The server ends with the sweep, and a run ends with the server; otherwise the server would outlive the sweep. It ignores
signals that end all processes, as on a pre-empted machine, because the sweep and its runs save first.
"""

import logging
import signal

from gtpo_cli.sweeps.processes import end_with_parent
from gtpo_cli.training.interrupts import ending_signals

end_with_parent()
for number in ending_signals():
    signal.signal(number, lambda *_: None)
logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # as in gtpo_cli.cli.app, which comes after this import
