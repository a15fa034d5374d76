"""A rank as a process of its machine: it is watched, and its messages are moved by a thread that does not hold up the
one that computes. (That it ends with the process that started it is tied.py's.)"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path


def let_compute_first() -> int:
    """Have gloo's thread wake without interrupting the others of this process (Linux); returns how many were found.

    That thread moves the messages of all channels. Woken by an answer, it would by default interrupt the very thread
    that has just written to the channel and still holds its lock, and then spin on that lock for as long as the
    scheduler lets it. Under SCHED_BATCH it waits for the next tick, or for another core.
    """
    found = 0
    for task in Path("/proc/self/task").glob("*"):
        try:
            if (task / "comm").read_text(encoding="utf-8").strip() == "gloo_tcp_loop":
                os.sched_setscheduler(int(task.name), os.SCHED_BATCH, os.sched_param(0))
                found += 1
        except OSError:
            continue  # a thread that has just ended, or a system that forbids it: only time is lost
    return found


def keep_freed_memory() -> bool:
    """Have the allocator keep what is freed for what is asked for next (glibc); returns whether it does.

    By default it hands large blocks back to the system, which then clears each page of every activation and message
    anew: a tenth of a step of ResNet-20. The process stays as large as it has been at its largest.
    """
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt"):
        return False
    trim_threshold, mmap_threshold = -1, -3  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD of malloc.h
    return bool(library.mallopt(trim_threshold, 2**31 - 1)) and bool(library.mallopt(mmap_threshold, 2**30))


class Watch:
    """Ends the process when one action takes longer than `timeout` seconds, after `tell(text)`.

    `running()` is (what, since when), or None while nothing that is watched runs.
    """

    def __init__(
        self, timeout: float, running: Callable[[], tuple[str, float] | None], tell: Callable[[str], None]
    ) -> None:
        self.timeout, self.running, self.tell = timeout, running, tell
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True, name="watch")
        self._thread.start()

    def _look(self) -> None:
        while not self._done.wait(min(1.0, self.timeout / 4)):
            running = self.running()
            if running is not None and time.monotonic() - running[1] > self.timeout:
                self.tell(f"hangs: {running[0]} has not ended for {self.timeout:g} s")
                os._exit(1)

    def stop(self) -> None:
        self._done.set()
