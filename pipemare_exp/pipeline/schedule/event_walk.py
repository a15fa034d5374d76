"""When does every operation start, if each device runs its operations in a given order?

The one walk that places schedules in slots (every operation takes one) and that times them (operations take what they
cost): an operation starts as soon as its lane is free and what it takes in is there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pipemare_exp.pipeline.schedule.actions import WORK, Op

Operation = tuple[Op, int, int]
"""(operation, stage, microbatch)"""

Lane = list[Operation]
"""Operations that run one after the other, in this order. A device has one lane, or two in duplex slots."""

ONE_SLOT: Mapping[Op, int] = dict.fromkeys(WORK, 1)


def starts(
    lanes: Sequence[Sequence[Operation]],
    stages: int,
    duration: Mapping[Op, float] = ONE_SLOT,
    begin: float = 0,
    latency: Callable[[int, int], float] | None = None,
) -> dict[Operation, float]:
    """The start of every operation of `lanes`, from `begin` on.

    The forward of g takes what the stage before made of it. A backward or input gradient takes what the stage after
    gave back, and at the last stage what its own forward made. A weight gradient takes what its input gradient left on
    the device. `latency(a, b)` is what lies between the end of an operation at stage a and the moment at which stage b
    has its result; it keeps no device busy. Raises RuntimeError where lanes wait for each other for ever.
    """
    placed: dict[Operation, float] = {}
    there: dict[tuple[bool, int, int], float] = {}
    waiting: dict[tuple[bool, int, int], int] = {}
    following, free = [0] * len(lanes), [begin] * len(lanes)
    runnable = list(reversed(range(len(lanes))))
    while runnable:
        lane = runnable.pop()
        order, now, k = lanes[lane], free[lane], following[lane]
        while k < len(order):
            op, stage, g = operation = order[k]
            forward = op is Op.FORWARD
            if op is not Op.WEIGHT_GRADIENT and not (forward and stage == 0):
                arrived = there.get((forward, stage, g))
                if arrived is None:
                    waiting[forward, stage, g] = lane
                    break
                now = max(now, arrived)
            placed[operation] = now
            now += duration[op]
            k += 1
            if op is Op.WEIGHT_GRADIENT:
                continue
            turns = forward and stage == stages - 1  # the loss: what comes back begins here
            to = stage if turns else stage + 1 if forward else stage - 1
            result = (forward and not turns, to, g)
            there[result] = now + (latency(stage, to) if latency is not None and to not in (stage, -1) else 0)
            if result in waiting:
                runnable.append(waiting.pop(result))
        free[lane], following[lane] = now, k
    left = sum(map(len, lanes)) - len(placed)
    if left:
        raise RuntimeError(f"the orders of {stages} stages wait for each other; {left} operations left")
    return placed
