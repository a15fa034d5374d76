"""Measured times: utilization over whole periods, evaluations taken out, clocks of machines aligned, a valid trace."""

from __future__ import annotations

import json
import time

import pytest

from pipemare_exp.pipeline.runtime.timeline import (
    DeviceClock,
    Event,
    Timeline,
    aligned,
    chrome_trace,
    utilization,
    windows,
)


def rank_events(offset: float) -> list[Event]:
    """Ten steps of 1 s: a forward of 0.3 s, a backward of 0.4 s, an update at the second's end."""
    events = []
    for step in range(10):
        begin = offset + step
        events += [
            Event(f"F{step}", 0, step, begin, begin + 0.3),
            Event(f"B{step}", 0, step, begin + 0.5, begin + 0.9),
            Event(f"U{step}", 0, step, begin + 0.95, begin + 1.0),
        ]
    return events


def test_utilization_counts_whole_periods() -> None:
    by_rank = {0: rank_events(0.0), 1: rank_events(0.25)}
    within = windows(by_rank, 2, 8)
    assert within == {0: (pytest.approx(3.0), pytest.approx(9.0)), 1: (pytest.approx(3.25), pytest.approx(9.25))}
    assert utilization(by_rank, within) == {0: pytest.approx(0.7), 1: pytest.approx(0.7)}


def test_time_in_which_rank_0_evaluates_belongs_to_no_window() -> None:
    late = [Event(e.name, e.stage, e.step, e.begin + 5.0, e.end + 5.0) for e in rank_events(0.0)[15:]]
    events = [*rank_events(0.0)[:15], Event("E5", 0, 5, 5.0, 10.0), *late]
    by_rank = {0: events}
    assert utilization(by_rank, windows(by_rank, 2, 8)) == {0: pytest.approx(0.7)}


def test_too_short_a_run_has_no_steady_state() -> None:
    with pytest.raises(ValueError, match="use more steps"):
        windows({0: rank_events(0.0)}, 8, 8)
    with pytest.raises(ValueError, match="rank 0 has no time"):
        windows({0: rank_events(0.0)}, 3, 30)


def test_clocks_of_two_machines() -> None:
    """The second machine was started 100 s later: its monotonic clock reads 100 s less at the same moment."""
    here, there, beside = (Timeline(rank) for rank in range(3))
    there.host, there.wall = "elsewhere", here.wall + 100.0
    beside.wall = here.wall + 7.0  # the same machine: its clock is shared, whatever the wall clock did meanwhile
    for timeline, shift in ((here, 0.0), (there, -100.0), (beside, 0.0)):
        timeline.add("F0", timeline.rank, 0, 200.0 + shift, 201.0 + shift)
    by_rank = aligned([timeline.export() for timeline in (there, here, beside)])
    assert list(by_rank) == [0, 1, 2]
    assert [events[0].begin for events in by_rank.values()] == [pytest.approx(200.0, abs=1e-3)] * 3


def test_the_trace_is_json_and_its_times_are_the_events() -> None:
    by_rank = {0: rank_events(3.0), 1: rank_events(3.5)}
    trace = json.loads(json.dumps(chrome_trace(by_rank)))
    for rank, events in by_rank.items():
        rows = [row for row in trace["traceEvents"] if row["ph"] == "X" and row["pid"] == rank]
        assert len(rows) == len(events)
        for name, op in (("forward", "F"), ("backward", "B"), ("update", "U")):
            seconds = sum(event.end - event.begin for event in events if event.op == op)
            assert sum(row["dur"] for row in rows if row["cat"] == name) == pytest.approx(seconds * 1e6)
    assert min(row["ts"] for row in trace["traceEvents"] if row["ph"] == "X") == 0


class DeviceEvent:
    """Stands in for torch.cuda.Event on a device that works `LAG` seconds behind what it is given."""

    LAG = 0.02

    def record(self) -> None:
        self.happens = time.monotonic() + self.LAG

    def query(self) -> bool:
        return time.monotonic() >= self.happens

    def synchronize(self) -> None:
        time.sleep(max(0.0, self.happens - time.monotonic()))

    def elapsed_time(self, later: DeviceEvent) -> float:
        assert self.query() and later.query(), "torch raises for events that are not over"
        return 1e3 * (later.happens - self.happens)


def test_times_of_a_device_are_its_own_and_nothing_waits_for_them() -> None:
    timeline = Timeline(0, DeviceClock(DeviceEvent))
    begins, ends = [], []
    for index in range(5):
        begins.append(timeline.mark())
        ends.append(timeline.mark())
        timeline.add(f"F{index}", 0, index, begins[-1], ends[-1])
    found = [Event(*event) for event in timeline.export()["events"]]
    assert [event.step for event in found] == list(range(5))
    # The origin is read a little after the first event was over: the rest is exact.
    shift = found[0].begin - begins[0].happens
    assert shift >= 0
    assert [event.begin for event in found] == pytest.approx([mark.happens + shift for mark in begins])
    assert [event.end for event in found] == pytest.approx([mark.happens + shift for mark in ends])
