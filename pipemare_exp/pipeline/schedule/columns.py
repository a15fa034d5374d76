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

from pipemare_exp.errors import UserError
from pipemare_exp.methods import Method
from pipemare_exp.pipeline.method import Asynchronous
from pipemare_exp.pipeline.schedule import orders as schedules
from pipemare_exp.pipeline.schedule.actions import ORDER_IN_SLOT, Action, Op, Schedule
from pipemare_exp.pipeline.schedule.versions import history_depth, slot_delays

FLUSHES = ("gpipe", "1f1b")
"""Orders in which a synchronous method may run a minibatch."""


@dataclass(frozen=True)
class Columns:
    """The columns of the schedule of `steps` steps, P = `stages`, N = `microbatches`.

    `flush` orders a synchronous method's minibatch; `start` = M, `slots` and `segment` are as in `schedule.pipemare`,
    with `start` None for a method that is synchronous throughout.
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
            # The last flushed step is not apart from the others: its update is followed by the next part's fill.
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
        make = schedules.gpipe if columns.flush == "gpipe" else schedules.one_f_one_b
        return make(columns.stages, columns.microbatches, steps)
    return schedules.pipemare(columns.stages, columns.microbatches, steps, columns.slots, start, columns.segment)


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
    index = action.index + (steps if action.op is Op.UPDATE else steps * microbatches)
    return Action(action.op, index, action.slot + slots)


def columns_of(
    method: Method,
    stages: int,
    microbatches: int,
    steps: int,
    slots: str,
    segment: int | None = None,
    flush: str = "gpipe",
) -> Columns:
    """The columns that `method` runs under. Raises UserError for a method that no schedule fits."""
    if flush not in FLUSHES:
        raise UserError(f"engine.flush={flush}; allowed: {', '.join(FLUSHES)}")
    if method.synchronous:
        return Columns(stages, microbatches, steps, flush=flush)
    if not isinstance(method, Asynchronous):
        raise UserError(
            f"method {method.label} with engine=runtime: its delays are drawn at random, and no pipeline has such "
            "delays; take engine=emulator"
        )
    if flush != "gpipe":
        raise UserError(
            f"engine.flush={flush} with method {method.label}: it orders the minibatches of a synchronous method"
        )
    return Columns(stages, microbatches, steps, slots, method.warmup_steps, segment)


def ranks_of(stages: int, ranks: int) -> list[range]:
    """The stages of each rank: contiguous, in numbers that differ by at most one. UserError for more ranks."""
    if not 1 <= ranks <= stages:
        raise UserError(
            f"engine.ranks={ranks} with {stages} stages: a rank holds at least one stage; take 1 to {stages} ranks"
        )
    return [range(r * stages // ranks, (r + 1) * stages // ranks) for r in range(ranks)]


def takes_from(stage: int, action: Action, stages: int, segment: int | None) -> tuple[int, Op, int] | None:
    """(sending stage, its operation, microbatch) of the message that `action` at `stage` takes in; None: it needs
    none. A recomputation takes one from the stage before it within its segment."""
    if action.op is Op.FORWARD:
        return (stage - 1, Op.FORWARD, action.index) if stage else None
    if action.op is Op.BACKWARD:
        return (stage + 1, Op.BACKWARD, action.index) if stage < stages - 1 else None
    if action.op is Op.RECOMPUTE and segment is not None and stage % segment:
        return stage - 1, Op.RECOMPUTE, action.index
    return None


def gives_to(stage: int, action: Action, stages: int, segment: int | None) -> int | None:
    """The stage that the result of `action` at `stage` is sent to, or None."""
    if action.op is Op.FORWARD:
        return stage + 1 if stage < stages - 1 else None
    if action.op is Op.BACKWARD:
        return stage - 1 if stage else None
    if action.op is Op.RECOMPUTE and segment is not None and stage < stages - 1 and (stage + 1) % segment:
        return stage + 1
    return None


def check_messages(columns: Sequence[Sequence[tuple[int, Action]]], stages: int, segment: int | None) -> int:
    """Runs ranks' action lists against each other on paper; returns the number of messages.

    Every rank executes its list in order; an action waits for the message that it takes, a send never waits. Raises
    RuntimeError where ranks wait for each other for ever, where a message is taken before its sender's list can give
    it, or where one is sent and never taken.
    """
    sent: set[tuple[int, Op, int]] = set()
    taken: set[tuple[int, Op, int]] = set()
    places = [0] * len(columns)
    moved = True
    while moved:
        moved = False
        for rank, column in enumerate(columns):
            while places[rank] < len(column):
                stage, action = column[places[rank]]
                needs = takes_from(stage, action, stages, segment)
                if needs is not None and needs not in sent:
                    break
                if needs is not None:
                    taken.add(needs)
                if gives_to(stage, action, stages, segment) is not None:
                    sent.add((stage, action.op, action.index))
                places[rank] += 1
                moved = True
    stuck = [(rank, *column[place]) for rank, (column, place) in enumerate(zip(columns, places, strict=True))
             if place < len(column)]  # fmt: skip
    if stuck:
        rank, stage, action = stuck[0]
        raise RuntimeError(f"{len(stuck)} ranks wait for ever, rank {rank} (stage {stage}) for what {action} takes")
    if sent != taken:
        raise RuntimeError(f"{len(sent - taken)} messages are sent and never taken: {sorted(sent - taken)[:3]}")
    return len(sent)
