"""From the order in which devices run their operations to a schedule: checks, slots, updates."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pipemare_exp.errors import UserError
from pipemare_exp.pipeline.schedule.actions import ORDER_IN_SLOT, Action, Op, Schedule, check_slots
from pipemare_exp.pipeline.schedule.event_walk import Lane, Operation, starts

Slots = dict[Operation, int]


def check(stages: int, microbatches: int, steps: int, slots: str, start: int, segment: int | None) -> None:
    """UserError for numbers of which no schedule can be made."""
    for name, value in (("stages", stages), ("microbatches", microbatches), ("steps", steps)):
        if value < 1:
            raise UserError(f"{name}={value}; a schedule needs at least 1")
    check_slots(slots)
    if not 0 <= start <= steps:
        raise UserError(f"start={start} with steps={steps}; the flushed steps must be 0 to {steps} of them")
    if segment is None:
        return
    if slots != "duplex":
        raise UserError(
            f"segment={segment} with slots={slots!r}; recomputation needs duplex slots: where a slot holds "
            "one operation, it would take the slots of forwards and backwards and so change every delay"
        )
    if not 1 <= segment <= stages:
        raise UserError(f"segment={segment} with stages={stages}; a segment has 1 to {stages} stages")


def place(lanes: Sequence[Lane], stages: int, begin: int = 0) -> Slots:
    """The slot of every operation: the earliest, from `begin` on, that its lane and what it takes in allow."""
    return {operation: int(slot) for operation, slot in starts(lanes, stages, begin=begin).items()}


def flushed(lane_of: Callable[[int], Lane], devices: int, stages: int, microbatches: int, steps: int) -> Slots:
    """Minibatch after minibatch: `lane_of(device)` is a minibatch's order, and a device begins the next minibatch when
    it is through with the one before."""
    once = [lane_of(device) for device in range(devices)]
    lanes = [[(op, s, t * microbatches + n) for t in range(steps) for op, s, n in lane] for lane in once]
    return place(lanes, stages)


def synchronous(
    name: str,
    lane_of: Callable[[int], Lane],
    devices: int,
    microbatches: int,
    steps: int,
    placement: tuple[int, ...] | None = None,
) -> Schedule:
    """The schedule that repeats the minibatch of `flushed`; `placement` as in `Schedule`."""
    stages = devices if placement is None else len(placement)
    check(stages, microbatches, steps, "alternating", steps, None)
    made = columns(stages, microbatches, flushed(lane_of, devices, stages, microbatches, steps))
    return Schedule(name, "alternating", stages, microbatches, steps, steps, None, made, placement=placement)


def columns(stages: int, microbatches: int, placed: Slots) -> tuple[tuple[Action, ...], ...]:
    """Each stage's actions in order, with its updates: in the slot in which a minibatch's gradient is complete."""
    found: list[list[Action]] = [[] for _ in range(stages)]
    for (op, stage, g), slot in placed.items():
        step = g // microbatches
        found[stage].append(Action(op, step, g, slot))
        if op in (Op.BACKWARD, Op.WEIGHT_GRADIENT) and (g + 1) % microbatches == 0:
            found[stage].append(Action(Op.UPDATE, step, g, slot))
    return tuple(tuple(sorted(column, key=lambda a: (a.slot, ORDER_IN_SLOT[a.op]))) for column in found)
