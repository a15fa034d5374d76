"""Signals as a wish to stop after the current step, so that a run can write its state first."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
"""Ctrl-C; a scheduler's end of a job; a closed terminal; Slurm's usual warning before the end of a job."""

Handler = Callable[[int, FrameType | None], None]


def on_signals(handler: Handler) -> dict[int, Any]:
    """Let `handler` take SIGNALS; returns the handlers before. SIGHUP stays ignored where `nohup` had it ignored."""
    taken = [n for n in SIGNALS if n != signal.SIGHUP or signal.getsignal(n) != signal.SIG_IGN]
    return {number: signal.signal(number, handler) for number in taken}


class StopRequest:
    """While entered, notes the first of SIGNALS in `signal`; a second SIGINT interrupts at once.

    `also` may ask for a stop as well, which counts as SIGINT. Handlers belong to a process's main thread: elsewhere
    none is set.
    """

    def __init__(self, also: Callable[[], bool] | None = None) -> None:
        self.signal: int | None = None
        self._also = also
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            self._before = on_signals(self._note)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def wanted(self) -> bool:
        """Whether a stop was asked for."""
        if self.signal is None and self._also is not None and self._also():
            self.signal = signal.SIGINT
        return self.signal is not None

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = number
