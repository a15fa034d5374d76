"""Who sends what to whom: which message each action takes in and sends."""

from __future__ import annotations

from collections.abc import Sequence

from pipemare_exp.errors import UserError
from pipemare_exp.pipeline.method import RUNTIME, Method
from pipemare_exp.pipeline.schedule.actions import Action, Op
from pipemare_exp.pipeline.schedule.columns import Columns

FLUSHES = ("gpipe", "1f1b")
"""Orders in which a synchronous method may run a minibatch."""


def columns_of(
    method: Method,
    stages: int,
    microbatches: int,
    steps: int,
    slots: str,
    segment: int | None = None,
    flush: str = "gpipe",
) -> Columns:
    """The columns that `method` runs under. Raises UserError for a method that follows no schedule."""
    if flush not in FLUSHES:
        raise UserError(f"engine.flush={flush}; allowed: {', '.join(FLUSHES)}")
    method.check_takes(RUNTIME, "take engine=emulator")
    if method.synchronous:
        return Columns(stages, microbatches, steps, flush=flush)
    if flush != "gpipe":
        raise UserError(
            f"engine.flush={flush} with method {method.label}: it orders the minibatches of a synchronous method"
        )
    return Columns(stages, microbatches, steps, slots, method.warmup_steps, segment)


def takes_from(stage: int, action: Action, stages: int, segment: int | None) -> tuple[int, Op, int] | None:
    """(sending stage, its operation, microbatch) of the message that `action` at `stage` takes in; None: it needs
    none. A recomputation takes one from the stage before it within its segment."""
    if action.op is Op.FORWARD:
        return (stage - 1, Op.FORWARD, action.microbatch) if stage else None
    if action.op is Op.BACKWARD:
        return (stage + 1, Op.BACKWARD, action.microbatch) if stage < stages - 1 else None
    if action.op is Op.RECOMPUTE and segment is not None and stage % segment:
        return stage - 1, Op.RECOMPUTE, action.microbatch
    return None


def gives_to(stage: int, op: Op, stages: int, segment: int | None) -> int | None:
    """The stage that the result of `op` at `stage` is sent to, or None."""
    if op is Op.FORWARD:
        return stage + 1 if stage < stages - 1 else None
    if op is Op.BACKWARD:
        return stage - 1 if stage else None
    if op is Op.RECOMPUTE and segment is not None and stage < stages - 1 and (stage + 1) % segment:
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
                if gives_to(stage, action.op, stages, segment) is not None:
                    sent.add((stage, action.op, action.microbatch))
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
