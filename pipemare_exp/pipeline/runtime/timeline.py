"""What ranks did when: measured times of actions, utilization out of them, and their export as a Chrome trace."""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

KEPT = 50_000
"""Actions that a rank remembers, the last ones."""

WORK = ("F", "B", "R")
"""Operations that count as busy. An update takes no slot of a schedule: it is measured, but is neither work nor
waiting."""


class Event(NamedTuple):
    """An action (`F3`, `U0`; `E5`: the evaluation after 5 steps) with its step and its times, in seconds of the
    machine's monotonic clock. Waiting for its input comes before `begin`."""

    name: str
    stage: int
    step: int
    begin: float
    end: float

    @property
    def op(self) -> str:
        return self.name[0]


Mark = Any
"""A moment: seconds on a CPU, on CUDA an event (`torch.cuda.Event`, or in tests what has its methods)."""


class DeviceClock:
    """When CUDA events happened, in seconds of the host's monotonic clock.

    An event knows the milliseconds since another one in single precision, so that each is timed from the one before it
    and only the first from the host. `make_event` makes one that can be timed.
    """

    def __init__(self, make_event: Callable[[], Any]) -> None:
        self._make = make_event
        self._last = self.mark()
        self._last.synchronize()
        self._seconds = time.monotonic()

    def mark(self) -> Any:
        """An event after all that was given to the current stream until now."""
        event = self._make()
        event.record()
        return event

    def seconds(self, event: Any) -> float:
        """When `event` happened, which must be over; events are asked for in the order in which they were made."""
        self._seconds += self._last.elapsed_time(event) / 1e3
        self._last = event
        return self._seconds


class Timeline:
    """The times of one rank's actions. With a `clock` they are the device's, and the host does not wait for them."""

    def __init__(self, rank: int, clock: DeviceClock | None = None) -> None:
        self.rank = rank
        self.host = socket.gethostname()
        self.wall = time.time() - time.monotonic()
        self.events: deque[Event] = deque(maxlen=KEPT)
        self._clock = clock
        self._open: deque[tuple[str, int, int, Mark, Mark]] = deque()

    def mark(self) -> Mark:
        """Now, for `add`."""
        return time.monotonic() if self._clock is None else self._clock.mark()

    def add(self, name: str, stage: int, step: int, begin: Mark, end: Mark) -> None:
        if self._clock is None:
            self.events.append(Event(name, stage, step, begin, end))
            return
        self._open.append((name, stage, step, begin, end))
        while self._open and self._open[0][4].query():
            self._close()

    def _close(self) -> None:
        assert self._clock is not None
        name, stage, step, begin, end = self._open.popleft()
        began = self._clock.seconds(begin)
        self.events.append(Event(name, stage, step, began, self._clock.seconds(end)))

    def export(self) -> dict[str, Any]:
        """All of it as plain JSON; waits for what the device has not done yet."""
        while self._open:
            self._open[0][4].synchronize()
            self._close()
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


Windows = dict[int, tuple[float, float]]
"""By rank: from when to when, in seconds."""


def windows(by_rank: dict[int, list[Event]], skip: int, last: int) -> Windows:
    """Per rank the time from its update of step `skip` to the one of step `last`: whole periods of what it repeats.

    The updates are those of a rank's first stage. Raises ValueError where a rank has none of them.
    """
    found = {}
    for rank, events in by_rank.items():
        first = min((event.stage for event in events if event.op == "U"), default=None)
        ends = {event.step: event.end for event in events if event.op == "U" and event.stage == first}
        if last <= skip or skip not in ends or last not in ends:
            raise ValueError(f"rank {rank} has no time between the updates of steps {skip} and {last}: use more steps")
        found[rank] = (ends[skip], ends[last])
    return found


def busy(events: Sequence[Event], begin: float, end: float, ops: Sequence[str] = WORK) -> float:
    """Seconds between `begin` and `end` in which one of `ops` ran."""
    return sum(max(0.0, min(e.end, end) - max(e.begin, begin)) for e in events if e.op in ops)


def utilization(by_rank: dict[int, list[Event]], within: Windows) -> dict[int, float]:
    """Per rank, the share of its window in which it ran forwards, backwards or recomputations.

    Time in which rank 0 evaluates, and so sends nothing, belongs to no window. A rank computes one thing at a time, so
    that 1 is the most, in duplex slots too.
    """
    shares = {}
    for rank, (begin, end) in within.items():
        evaluating = busy(by_rank[0], begin, end, ("E",))
        shares[rank] = busy(by_rank[rank], begin, end) / (end - begin - evaluating)
    return shares


def chrome_trace(by_rank: dict[int, list[Event]]) -> dict[str, Any]:
    """A trace for chrome://tracing or ui.perfetto.dev: a process per rank, a thread per stage, microseconds."""
    origin = min((events[0].begin for events in by_rank.values() if events), default=0.0)
    names = {"F": "forward", "B": "backward", "R": "recompute", "U": "update", "E": "evaluate"}
    rows: list[dict[str, Any]] = []
    for rank, events in by_rank.items():
        rows.append({"name": "process_name", "ph": "M", "pid": rank, "args": {"name": f"rank {rank}"}})
        for event in events:
            rows.append(
                {
                    "name": event.name,
                    "cat": names[event.op],
                    "ph": "X",
                    "pid": rank,
                    "tid": event.stage,
                    "ts": (event.begin - origin) * 1e6,
                    "dur": (event.end - event.begin) * 1e6,
                    "args": {"step": event.step, "stage": event.stage},
                }
            )
    return {"traceEvents": rows, "displayTimeUnit": "ms"}
