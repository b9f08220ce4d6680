"""When a run should end early: SIGTERM, SIGINT (Ctrl-C), or its budget of minutes. Knows no run and no disk.

Asks first: the run ends itself where nothing is lost. A second signal does not ask.
"""

import os
import signal
import time
from contextlib import contextmanager

from bert import Stopped

_ECHO = 1.0  # seconds
_NAMES = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}


class StopRequest:
    """Whether somebody, or the clock, has asked the run to stop; `max_minutes` count from here, None is no budget."""

    def __init__(self, max_minutes=None):
        self._max_minutes = max_minutes
        self._deadline = None if max_minutes is None else time.monotonic() + 60 * max_minutes
        self._signal, self._asked = None, 0.0

    def check(self):
        """Raises Stopped where the run was asked to stop. Called only where it can."""
        if self._signal is not None:
            raise Stopped(_NAMES[self._signal])
        if self._deadline is not None and time.monotonic() >= self._deadline:
            raise Stopped(f"--max_minutes {self._max_minutes:g}")

    @contextmanager
    def listening(self):
        """While it lasts the first signal is a request, and the second ends the run at once (KeyboardInterrupt)."""
        before = {number: signal.signal(number, self._note) for number in _NAMES}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _note(self, number, frame):
        if self._signal is not None:
            # A scheduler may signal every process of a job, and a suite passes on what it got: that is one request.
            if number == signal.SIGTERM and time.monotonic() < self._asked + _ECHO:
                return
            raise KeyboardInterrupt
        self._signal, self._asked = number, time.monotonic()
        try:  # not print: the signal may have come while something was being printed
            os.write(2, f"\n{_NAMES[number]}: stopping after this update; once more stops at once\n".encode())
        except OSError:
            pass
