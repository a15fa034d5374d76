"""Devices simulated tick by tick with a clock of whole numbers: the oracle for times.

It shares no code with the package. A device looks at its list once a tick. It begins the next operation if it is idle
and what that takes in has arrived.
"""

from __future__ import annotations

Step = tuple[str, int, int]
"""(F, B, I or W, stage, microbatch)"""


def tick(lists: list[list[Step]], stages: int, takes: dict[str, int], message: int) -> dict[Step, int]:
    """The tick at which each operation begins; `takes[op]` ticks each, a message between devices `message`."""
    home = {stage: device for device, mine in enumerate(lists) for _, stage, _ in mine}
    begun: dict[Step, int] = {}
    left = [list(mine) for mine in lists]
    idle_from = [0] * len(lists)
    now = 0
    while any(left):
        for device, mine in enumerate(left):
            while mine and idle_from[device] <= now and _arrived(mine[0], begun, home, stages, takes, message, now):
                begun[mine[0]] = now
                idle_from[device] = now + takes[mine.pop(0)[0]]
        now += 1
        assert now < 100_000, "stuck"
    return begun


def _arrived(step: Step, begun, home, stages: int, takes: dict[str, int], message: int, now: int) -> bool:
    op, stage, g = step
    if op == "W":
        sources = [("I", stage, g)]
    elif op == "F":
        sources = [("F", stage - 1, g)] if stage else []
    elif stage == stages - 1:
        sources = [("F", stage, g)]
    else:
        sources = [(kind, stage + 1, g) for kind in "BI" if (kind, stage + 1, g) in begun] or [("B", stage + 1, g)]
    for source in sources:
        if source not in begun:
            return False
        away = message if home[source[1]] != home[stage] else 0
        if begun[source] + takes[source[0]] + away > now:
            return False
    return True
