"""What a rank executes: its stages' columns of a schedule, for any number of steps and from any step on.

A schedule is periodic: in its flushed part a step repeats the one before it, and so it does in the asynchronous part
once every stage has filled. Long runs are therefore not written out whole: a short schedule gives the fill, one
period and the drain, and the period is repeated.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from pipemare_exp.pipeline.schedule import orders
from pipemare_exp.pipeline.schedule.actions import ORDER_IN_SLOT, Action, Op, Schedule
from pipemare_exp.pipeline.schedule.versions import history_depth, slot_delays


@dataclass(frozen=True)
class Columns:
    """The columns of the schedule of `steps` steps, P = `stages`, N = `microbatches`.

    `start` = M, `slots` and `segment` are as in `orders.pipemare`; `start` is None for a method that is synchronous
    throughout, whose minibatches run in the order `flush` (gpipe or 1f1b).
    """

    stages: int
    microbatches: int
    steps: int
    slots: str = "alternating"
    start: int | None = None
    segment: int | None = None
    flush: str = "gpipe"

    def schedule(self, steps: int, start: int) -> Schedule:
        """The schedule of `steps` steps, of which the first `start` are flushed, written out whole."""
        return _schedule(self, steps, start)

    def stage(self, stage: int, after: int = 0) -> Iterator[Action]:
        """The actions of `stage` that follow its update of step `after` - 1, which makes version `after`."""
        for step, actions in self._by_step(stage, after):
            if step >= after:
                yield from actions

    def rank(self, stages: Sequence[int], after: int = 0) -> Iterator[tuple[int, Action]]:
        """(stage, action) of several stages in the order of slots, each from version `after` on."""
        streams = [self._tagged(stage, after) for stage in stages]
        for _, _, stage, action in heapq.merge(*streams, key=lambda item: item[:3]):
            yield stage, action

    def _tagged(self, stage: int, after: int) -> Iterator[tuple[int, int, int, Action]]:
        for action in self.stage(stage, after):
            yield action.slot, ORDER_IN_SLOT[action.op], stage, action

    def _by_step(self, stage: int, after: int) -> Iterator[tuple[int, list[Action]]]:
        """(t, the actions after the update of step t - 1 up to and with the one of step t), from `after` or before."""
        start = self.steps if self.start is None else min(self.start, self.steps)
        slot = 0
        if start:
            # Every flushed step repeats this one, the last included: what comes next waits for its last update.
            period = self.schedule(1, 1)
            step = _groups(period.columns[stage])[0]
            for t in range(min(after, start), start):
                yield t, [_moved(a, t, self.microbatches, t * period.length) for a in step]
            slot = start * period.length
        if start < self.steps:
            for t, actions in self._asynchronous(stage, self.steps - start, max(after - start, 0)):
                yield start + t, [_moved(a, start, self.microbatches, slot) for a in actions]

    def _asynchronous(self, stage: int, steps: int, after: int) -> Iterator[tuple[int, list[Action]]]:
        """The part without flushes, its steps, microbatches and slots counted from its own beginning."""
        deepest = max(slot_delays(self.stages, self.slots))
        fill = 2 * history_depth(deepest, self.microbatches) + 2
        if steps <= 2 * fill + 2:
            written = _groups(self.schedule(steps, 0).columns[stage])
            yield from list(enumerate(written))[after:]
            return
        written = _groups(self.schedule(2 * fill + 2, 0).columns[stage])
        before, following = written[fill], written[fill + 1]
        period = following[-1].slot - before[-1].slot
        repeated = steps - len(written)
        for t in range(after, steps):
            source = t if t <= fill else max(fill + 1, t - repeated) if t > fill + repeated else fill
            shift = t - source
            yield t, [_moved(a, shift, self.microbatches, shift * period) for a in written[source]]


@lru_cache(maxsize=8)  # every stage of a rank asks for the same ones
def _schedule(columns: Columns, steps: int, start: int) -> Schedule:
    if columns.start is None:
        make = orders.gpipe if columns.flush == "gpipe" else orders.one_f_one_b
        return make(columns.stages, columns.microbatches, steps)
    return orders.pipemare(columns.stages, columns.microbatches, steps, columns.slots, start, columns.segment)


def _groups(column: Sequence[Action]) -> list[list[Action]]:
    """A column cut after every update."""
    groups: list[list[Action]] = [[]]
    for action in column:
        groups[-1].append(action)
        if action.op is Op.UPDATE:
            groups.append([])
    assert not groups[-1], "a column ends with an update"
    return groups[:-1]


def _moved(action: Action, steps: int, microbatches: int, slots: int) -> Action:
    return Action(action.op, action.step + steps, action.microbatch + steps * microbatches, action.slot + slots)
