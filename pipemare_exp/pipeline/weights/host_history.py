"""Old versions of the weights in host memory, fetched to the device one microbatch ahead.

On the device stay, of every stage that has a history, the current version and one place for the old version that the
next forward reads; all versions lie in a ring in host memory (pinned where the device is a GPU). A new version is
copied to the host while training goes on; when microbatch n has its weights, the versions of microbatch n + 1 are
fetched beside its forward and backward. Copies run on a stream of their own. On a CPU the same copies are made at once.

Values are copied and never computed, so a run is the same to the last bit, and its checkpoints are too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pipemare_exp.pipeline.weights.history import History, Ring, cut_into_rings
from pipemare_exp.pipeline.weights.reads import Read


class Lane:
    """Copies beside the main stream: `main` waits for what was copied, or the copies for what was computed."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._side = torch.cuda.Stream(device) if device.type == "cuda" else None

    def copy(self, target: Tensor, source: Tensor) -> Any:
        """Start a copy after what the main stream has been given so far; returns what `wait` takes."""
        if self._side is None:
            target.copy_(source)
            return None
        self._side.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._side):
            target.copy_(source, non_blocking=True)
            return self._side.record_event()

    def wait(self, copied: Any) -> None:
        """Let the main stream wait for a copy."""
        if copied is not None:
            torch.cuda.current_stream(self.device).wait_event(copied)

    def finish(self) -> None:
        """Wait, on the host, until all copies are made."""
        if self._side is not None:
            self._side.synchronize()


class HostHistory(History):
    """A history whose rings lie in host memory. `depths` as in `DeviceHistory`."""

    def __init__(self, live: Sequence[Tensor], depths: Sequence[int | None]) -> None:
        flat = [tensor.detach() for tensor in live]
        super().__init__(flat, _host_rings(flat, [0 if depth is None else depth + 1 for depth in depths]))
        self.lane = Lane(flat[0].device)
        with_ring = [0 if ring is None else tensor.numel() for ring, tensor in zip(self.rings, flat, strict=True)]
        self._top = flat[0].new_zeros(sum(with_ring)).split(with_ring)
        self._ahead = flat[0].new_zeros(sum(with_ring)).split(with_ring)
        self._fetched: list[int | None] = [None] * len(flat)
        self._fetching: list[Any] = [None] * len(flat)
        self._written: list[Any] = [None] * len(flat)
        for stage, ring in enumerate(self.rings):
            if ring is not None:
                self._top[stage].copy_(flat[stage])

    def version(self, stage: int, version: int) -> Tensor:
        slot = self._slot(stage, version)
        if self.rings[stage] is None:
            return slot
        if version == self.current:
            return self._top[stage]
        self.lane.wait(self._fetching[stage])
        if self._fetched[stage] != version:  # not foreseen: the main stream waits for the bus
            self.lane.wait(self._written[stage])
            self._ahead[stage].copy_(slot, non_blocking=True)
            self._fetched[stage] = version
        return self._ahead[stage]

    def prefetch(self, reads: Sequence[Read]) -> None:
        """Start to fetch the old versions among `reads`."""
        for stage, read in enumerate(reads):
            ring = self.rings[stage]
            if ring is None or read.ring is not None or read.version in (self.current, self._fetched[stage]):
                continue
            slot = self._slot(stage, read.version)
            self._fetching[stage] = self.lane.copy(self._ahead[stage], slot)
            self._fetched[stage] = read.version

    def change(self, stage: int) -> Tensor:
        self._ring(stage)
        self.lane.wait(self._fetching[stage])
        self._fetched[stage] = None
        return torch.sub(self.live[stage], self._top[stage], out=self._ahead[stage])

    def push(self) -> None:
        self.current += 1
        for stage, ring in enumerate(self.rings):
            if ring is None:
                continue
            self.lane.wait(self._written[stage])  # the top's last copy to the host
            self._top[stage].copy_(self.live[stage])
            self._written[stage] = self.lane.copy(ring.slot(self.current), self._top[stage])

    def nbytes(self) -> int:
        return sum(part.nbytes for part in (*self._top, *self._ahead))

    def host_nbytes(self) -> int:
        return sum(ring.data.nbytes for ring in self.rings if ring is not None)

    def state_dict(self) -> dict:
        self.lane.finish()
        return super().state_dict()

    def load_state_dict(self, state: dict) -> None:
        self.lane.finish()
        super().load_state_dict(state)
        for stage, ring in enumerate(self.rings):
            self._fetched[stage] = self._fetching[stage] = self._written[stage] = None
            if ring is not None:
                self._top[stage].copy_(self.live[stage])


def _host_rings(flat: Sequence[Tensor], lengths: Sequence[int]) -> list[Ring | None]:
    """As `make_rings`, in the host's memory."""
    pinned = flat[0].device.type == "cuda"
    numbers = sum(length * tensor.numel() for length, tensor in zip(lengths, flat, strict=True))
    block = torch.zeros(numbers, dtype=flat[0].dtype, pin_memory=pinned)
    return cut_into_rings(block, flat, lengths)
