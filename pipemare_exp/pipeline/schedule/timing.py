"""How long does a step take where operations take their own times? A schedule walked with a clock.

A device runs its operations in the schedule's order, each as soon as the device is free and what it takes in is there.
A duplex slot is a forward and then a backward of one device. No formula is used: those that are known are tests.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pipemare_exp.errors import UserError
from pipemare_exp.pipeline.schedule.actions import WORK, Op, Schedule
from pipemare_exp.pipeline.schedule.event_walk import Operation, starts


@dataclass(frozen=True)
class Times:
    """What operations of a whole device take, in any one unit of time; a stage that is one of v on it takes a v-th.

    forward, input_gradient, weight_gradient   keep the device busy; a whole backward takes both gradients' times
    communication                              from the end of an operation to the moment at which another device has
                                               its result; keeps no device busy
    """

    forward: float = 1.0
    input_gradient: float = 1.0
    weight_gradient: float = 1.0
    communication: float = 0.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not (math.isfinite(value) and value >= 0):
                raise UserError(f"{name}={value}; a time is a number from 0 on")
        if self.microbatch <= 0:
            raise UserError("every operation takes no time; at least one must take some")

    @property
    def microbatch(self) -> float:
        """What a device does for a microbatch: a forward and a backward."""
        return self.forward + self.input_gradient + self.weight_gradient

    def of_stage(self, share: float) -> dict[Op, float]:
        """What operations of a stage take that is a `share` of a device."""
        return {
            Op.FORWARD: share * self.forward,
            Op.INPUT_GRADIENT: share * self.input_gradient,
            Op.WEIGHT_GRADIENT: share * self.weight_gradient,
            Op.BACKWARD: share * (self.input_gradient + self.weight_gradient),
        }


@dataclass(frozen=True)
class WalkedTimes:
    """When everything happens: the start of every operation, and `updates[stage][t]`, the time of update t."""

    starts: dict[Operation, float]
    updates: list[list[float]]

    def step(self, first: int, last: int) -> float:
        """Time of a step, averaged over the steps from update `first` to update `last`, at the slowest stage."""
        return max((stage[last] - stage[first]) / (last - first) for stage in self.updates)


def walk_times(schedule: Schedule, times: Times, runs: int = 1) -> WalkedTimes:
    """Runs `schedule` with a clock, `runs` times over: each device begins again when it is through.

    An update takes no time. ValueError for a schedule that recomputes.
    """
    if schedule.segment is not None:
        raise ValueError("a schedule that recomputes activations has no times: a recomputation takes no slot")
    columns = schedule.device_columns()
    firsts = [run * schedule.steps * schedule.microbatches for run in range(runs)]
    lanes = [
        [(a.op, stage, first + a.microbatch) for first in firsts for stage, a in column if a.op in WORK]
        for column in columns
    ]
    takes = times.of_stage(schedule.devices / schedule.stages)

    def latency(one: int, other: int) -> float:
        return 0.0 if schedule.device_of(one) == schedule.device_of(other) else times.communication

    begun = starts(lanes, schedule.stages, takes, 0.0, latency)
    updates: list[list[float]] = [[] for _ in range(schedule.stages)]
    for column in columns:
        ended = 0.0
        for first in firsts:
            for stage, action in column:
                if action.op is Op.UPDATE:  # in the slot of the operation before it in the column
                    updates[stage].append(ended)
                else:
                    ended = begun[action.op, stage, first + action.microbatch] + takes[action.op]
    return WalkedTimes(begun, updates)
