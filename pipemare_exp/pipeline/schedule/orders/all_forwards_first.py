"""GPipe: all forwards of a minibatch, then all its backwards."""

from __future__ import annotations

from pipemare_exp.pipeline.schedule.actions import Op, Schedule
from pipemare_exp.pipeline.schedule.event_walk import Lane
from pipemare_exp.pipeline.schedule.orders.placing import synchronous


def gpipe(stages: int, microbatches: int, steps: int) -> Schedule:
    """All forwards of a minibatch, then all its backwards, then the update; 2(N + P - 1) slots a minibatch.

    Huang et al., "GPipe" (arXiv 1811.06965). Backwards run in the order n = 0..N-1, as in every schedule
    here, so that sums of gradients are formed in one order. Alternating slots.
    """
    return synchronous("gpipe", lambda s: all_forwards_first(s, microbatches), stages, microbatches, steps)


def all_forwards_first(stage: int, microbatches: int) -> Lane:
    """What `stage` runs for one minibatch, microbatches counted from 0."""
    return [(op, stage, n) for op in (Op.FORWARD, Op.BACKWARD) for n in range(microbatches)]
