"""What ranks did when: measured times of actions, utilization out of them, and their export as a Chrome trace."""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

KEPT = 50_000
"""Actions that a rank remembers, the last ones."""

WORK = ("F", "B", "R")
"""Operations that count as busy; an update is overhead of neither engine and is shown apart."""


class Event(NamedTuple):
    """An action with its times in seconds of the machine's monotonic clock; waiting for its input comes before."""

    op: str
    stage: int
    index: int
    begin: float
    end: float


class Timeline:
    """The times of one rank's actions."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.host = socket.gethostname()
        self.wall = time.time() - time.monotonic()
        self.events: deque[Event] = deque(maxlen=KEPT)

    def add(self, op: str, stage: int, index: int, begin: float, end: float) -> None:
        self.events.append(Event(op, stage, index, begin, end))

    def export(self) -> dict[str, Any]:
        return {"rank": self.rank, "host": self.host, "wall": self.wall, "events": [list(e) for e in self.events]}


def aligned(exports: Sequence[dict[str, Any]]) -> dict[int, list[Event]]:
    """Events by rank on rank 0's clock, sorted by begin.

    Ranks of one machine share its monotonic clock; between machines the wall clocks (NTP) are taken to agree.
    """
    first = min(exports, key=lambda item: item["rank"])
    found = {}
    for item in exports:
        shift = 0.0 if item["host"] == first["host"] else item["wall"] - first["wall"]
        events = [Event(e[0], e[1], e[2], e[3] + shift, e[4] + shift) for e in item["events"]]
        found[item["rank"]] = sorted(events, key=lambda event: event.begin)
    return dict(sorted(found.items()))


def steady_window(by_rank: dict[int, list[Event]], skip: int, last: int) -> tuple[float, float]:
    """From when every stage has made the update of step `skip` until the first one makes the update of step `last`.

    Raises ValueError where no such time is.
    """
    begins = [event.end for events in by_rank.values() for event in events if event.op == "U" and event.index == skip]
    ends = [event.end for events in by_rank.values() for event in events if event.op == "U" and event.index == last]
    if not begins or not ends or max(begins) >= min(ends):
        raise ValueError(f"no steady time between the updates of steps {skip} and {last}: use more steps")
    return max(begins), min(ends)


def busy(events: Sequence[Event], begin: float, end: float, ops: Sequence[str] = WORK) -> float:
    """Seconds between `begin` and `end` in which one of `ops` ran."""
    return sum(max(0.0, min(e.end, end) - max(e.begin, begin)) for e in events if e.op in ops)


def utilization(by_rank: dict[int, list[Event]], begin: float, end: float) -> list[float]:
    """Per rank, the share of the time between `begin` and `end` in which it ran forwards, backwards or recomputations.

    A rank computes one thing at a time, so that 1 is the most, in duplex slots too.
    """
    return [busy(events, begin, end) / (end - begin) for events in by_rank.values()]


def chrome_trace(by_rank: dict[int, list[Event]], microbatches: int) -> dict[str, Any]:
    """A trace for chrome://tracing or ui.perfetto.dev: a process per rank, a thread per stage, microseconds."""
    origin = min((events[0].begin for events in by_rank.values() if events), default=0.0)
    names = {"F": "forward", "B": "backward", "R": "recompute", "U": "update", "E": "evaluate"}
    rows: list[dict[str, Any]] = []
    for rank, events in by_rank.items():
        rows.append({"name": "process_name", "ph": "M", "pid": rank, "args": {"name": f"rank {rank}"}})
        for event in events:
            step = event.index if event.op in ("U", "E") else event.index // microbatches
            rows.append(
                {
                    "name": f"{event.op}{event.index}",
                    "cat": names[event.op],
                    "ph": "X",
                    "pid": rank,
                    "tid": event.stage,
                    "ts": (event.begin - origin) * 1e6,
                    "dur": (event.end - event.begin) * 1e6,
                    "args": {"step": step, "stage": event.stage},
                }
            )
    return {"traceEvents": rows, "displayTimeUnit": "ms"}
