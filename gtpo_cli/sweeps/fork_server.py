"""Imported by the server that a sweep's runs are forked from (processes.py), before anything else, and nowhere else.

The server ends with the sweep, and a run with the server. By itself it would stay as long as a run does. A signal that
asks all processes to end (a pre-empted machine's) it leaves to the sweep and the runs, which save first.
"""

import logging
import signal

from gtpo_cli.sweeps.processes import end_with_parent
from gtpo_cli.training.interrupts import ending_signals

end_with_parent()
for number in ending_signals():
    signal.signal(number, lambda *_: None)
logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # as in the command, which is too late for this import
