"""Schedules whose devices hold two stages each, so that the way through them is a V: ZB-V and DualPipe-V.

Device k holds stage k, on the way down, and stage 2P - 1 - k, on the way up. The loss is on the device where the data
come in, so a microbatch's backward begins where its forward ended up first, and every device is in use early.
"""

from __future__ import annotations

from collections import deque

from pipemare_exp.errors import UserError
from pipemare_exp.pipeline.schedule.actions import Op, Schedule
from pipemare_exp.pipeline.schedule.event_walk import Lane
from pipemare_exp.pipeline.schedule.orders.placing import check, synchronous


def zb_v(devices: int, microbatches: int, steps: int) -> Schedule:
    """ZB-V: as many activations as 1F1B's fullest device, P, on every device; no bubble if F, I and W take equally
    long and N >= 2P - 1.

    Qi et al., arXiv 2401.10241 (section 6) and 2405.15362. Fewer microbatches run in the same order, those that are
    not there left out. Alternating slots.
    """
    check(devices, microbatches, steps, "alternating", steps, None)
    return synchronous(
        "zb_v", lambda k: _zb_v(k, devices, microbatches), devices, microbatches, steps, v_placement(devices)
    )


def dualpipe_v(devices: int, microbatches: int, steps: int) -> Schedule:
    """DualPipe-V: forward of one half and backward of the other next to each other in the middle, the backward split
    only where the pipeline fills and drains. N >= 2P, UserError for less.

    DeepSeek-AI, "DualPipe" (arXiv 2412.19437), cut in half by Sea AI Lab. What hardware may run at the same time (a
    forward and a backward) stands here as two operations, one after the other. Alternating slots.
    """
    check(devices, microbatches, steps, "alternating", steps, None)
    if microbatches < 2 * devices:
        raise UserError(
            f"microbatches={microbatches} on {devices} devices: DualPipe-V needs at least as many as it has stages, "
            f"which are two on a device; take {2 * devices} or more"
        )
    return synchronous(
        "dualpipe_v", lambda k: _dualpipe_v(k, devices, microbatches), devices, microbatches, steps,
        v_placement(devices),
    )  # fmt: skip


def v_placement(devices: int) -> tuple[int, ...]:
    """The device of each of the 2P stages: down and up again."""
    return (*range(devices), *reversed(range(devices)))


class _Lane:
    """A lane that is written operation by operation, each stage counting its own microbatches."""

    def __init__(self, device: int, devices: int) -> None:
        self.down, self.up = device, 2 * devices - 1 - device
        self.operations: Lane = []
        self._next: dict[tuple[Op, int], int] = {}
        self.pending: deque[tuple[int, int]] = deque()
        """(stage, microbatch) of the weight gradients that are still to come, oldest first."""

    def count(self, op: Op, stage: int) -> int:
        return self._next.get((op, stage), 0)

    def forward(self, stage: int) -> None:
        self._add(Op.FORWARD, stage)

    def backward(self, stage: int) -> None:
        self._add(Op.BACKWARD, stage)
        self._next[Op.INPUT_GRADIENT, stage] = self.count(Op.BACKWARD, stage)

    def input_gradient(self, stage: int) -> None:
        g = self._add(Op.INPUT_GRADIENT, stage)
        self._next[Op.BACKWARD, stage] = g + 1
        self.pending.append((stage, g))

    def weight_gradient(self, stage: int | None = None) -> None:
        """The oldest one that is pending, of `stage` if given; nothing where none is."""
        found = next((one for one in self.pending if stage in (None, one[0])), None)
        if found is not None:
            self.pending.remove(found)
            self.operations.append((Op.WEIGHT_GRADIENT, *found))

    def _add(self, op: Op, stage: int) -> int:
        g = self.count(op, stage)
        self._next[op, stage] = g + 1
        self.operations.append((op, stage, g))
        return g


def _zb_v(device: int, devices: int, microbatches: int) -> Lane:
    """The order for max(N, 2P - 1) microbatches, of which those from N on are left out."""
    total = max(2 * devices - 1, microbatches)
    lane = _Lane(device, devices)
    down, up = lane.down, lane.up

    def whole(stage: int) -> None:
        lane.input_gradient(stage)
        lane.weight_gradient()

    for _ in range(2 * (devices - device) - 1):
        lane.forward(down)
    for _ in range(device):
        lane.forward(up)
        lane.forward(down)
    for _ in range(devices - device):
        lane.forward(up)
        whole(up)
    while lane.count(Op.FORWARD, up) < total:
        if lane.count(Op.FORWARD, down) < total:
            lane.forward(down)
        whole(down)
        lane.forward(up)
        whole(up)
    for _ in range(device):
        lane.input_gradient(down)
        lane.input_gradient(up)
    for _ in range(devices - device):
        lane.input_gradient(down)
        lane.weight_gradient(down)
    for stage in (up, down):
        while any(pending == stage for pending, _ in lane.pending):
            lane.weight_gradient(stage)
    return [operation for operation in lane.operations if operation[2] < microbatches]


def _dualpipe_v(device: int, devices: int, microbatches: int) -> Lane:
    lane = _Lane(device, devices)
    down, up = lane.down, lane.up
    after = devices - 1 - device
    """How many devices come after this one on the way down."""
    for _ in range(2 * after):
        lane.forward(down)
    for _ in range(device + 1):
        lane.forward(down)
        lane.forward(up)
    for _ in range(after):
        lane.input_gradient(up)
        lane.weight_gradient()
        lane.forward(up)
    for _ in range(microbatches - 2 * devices + device + 1):
        lane.forward(down)
        lane.backward(up)
        lane.forward(up)
        lane.backward(down)
    for _ in range(after):
        lane.backward(up)
        lane.forward(up)
        lane.backward(down)
    # From the middle of this phase on backwards are split; on every other device one operation later.
    last = device + 1
    for k in range(2 * last):
        split = k >= 2 * (last // 2) + (device % 2 == 0)
        (lane.input_gradient if split else lane.backward)(up if k % 2 == 0 else down)
    for _ in range(after):
        lane.weight_gradient()
        lane.input_gradient(down)
    while lane.pending:
        lane.weight_gradient()
    return lane.operations
