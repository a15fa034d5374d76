"""The past versions of each stage's weights, in rings."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pipemare_exp.pipeline.weights.reads import Read


class Ring:
    """Flat tensors of one stage by version, `data` of shape (length, weights of the stage): a new one takes the place
    of the one `length` versions before it."""

    def __init__(self, data: Tensor) -> None:
        self.data = data
        self._slots = data.unbind()  # views made once: a step asks for thousands

    def __len__(self) -> int:
        return len(self._slots)

    def slot(self, version: int) -> Tensor:
        return self._slots[version % len(self._slots)]


def make_rings(weights: Sequence[Tensor], lengths: Sequence[int]) -> list[Ring | None]:
    """A ring of `lengths[s]` zeros of stage s's weights' size, None where that is 0; all in one block of memory, as
    many small ones waste pages."""
    numbers = sum(length * flat.numel() for flat, length in zip(weights, lengths, strict=True))
    return cut_into_rings(weights[0].new_zeros(numbers), weights, lengths)


def cut_into_rings(block: Tensor, weights: Sequence[Tensor], lengths: Sequence[int]) -> list[Ring | None]:
    """The rings of `make_rings` over the given memory."""
    parts = block.split([length * flat.numel() for flat, length in zip(weights, lengths, strict=True)])
    return [
        Ring(part.view(length, flat.numel())) if length else None
        for part, length, flat in zip(parts, lengths, weights, strict=True)
    ]


class History:
    """The versions of every stage's weights that passes may still read.

    `live[s]` is the stage's slice of the flat weights. `rings[s]` is None for a stage whose passes only ever read its
    current weights as they are: its live slice is the current version. Otherwise the ring has the current version and
    those before it, and the live slice is free to be overwritten with whatever a pass reads. `current` is t.
    """

    def __init__(self, live: Sequence[Tensor], rings: Sequence[Ring | None]) -> None:
        self.live, self.rings = [tensor.detach() for tensor in live], list(rings)
        self.current = 0
        for ring, flat in zip(self.rings, self.live, strict=True):
            if ring is not None:
                ring.slot(0).copy_(flat)

    def version(self, stage: int, version: int) -> Tensor:
        """The weights of `stage` after `version` updates, on the device of the live ones; to be read before the next
        call for this stage. Raises LookupError for a version that is not kept."""
        return self._slot(stage, version)

    def _slot(self, stage: int, version: int, given_up: bool = False) -> Tensor:
        ring = self.rings[stage]
        kept = 1 if ring is None else len(ring) - given_up
        if not max(0, self.current - kept + 1) <= version <= self.current:
            raise LookupError(
                f"stage {stage} at version {self.current} keeps {kept} versions; version {version} is not kept"
            )
        return self.live[stage] if ring is None else ring.slot(version)

    def _ring(self, stage: int) -> Ring:
        ring = self.rings[stage]
        if ring is None:
            raise LookupError(f"stage {stage} keeps no copy to take a difference from")
        return ring

    def prefetch(self, reads: Sequence[Read]) -> None:
        """Say what the next forward reads, so that what lies elsewhere is on its way. Nothing where all is at hand."""

    def spare(self, stage: int) -> Tensor:
        """Memory of the stage's size for an estimate, free until the next `change` or `push`."""
        raise LookupError(f"the history of stage {stage} has no memory to spare")

    def change(self, stage: int) -> Tensor:
        """`live - current version` after the optimizer's step, in memory that `store` or `push` takes back."""
        raise NotImplementedError

    def store(self, stage: int) -> None:
        """The change of `stage` has been read: its next version may be written now, ahead of `push`."""

    def push(self) -> None:
        """Take the live weights as the next version, over the oldest one of each ring."""
        raise NotImplementedError

    def nbytes(self) -> int:
        """Bytes on the device."""
        return sum(ring.data.nbytes for ring in self.rings if ring is not None)

    def host_nbytes(self) -> int:
        """Bytes in host memory, where the device is another."""
        return 0

    def state_dict(self) -> dict:
        """Rings as they are; for a stage without one its live weights, which must be the current version now."""
        kept = [live.clone() if ring is None else ring.data for ring, live in zip(self.rings, self.live, strict=True)]
        return {"current": self.current, "kept": kept}

    def load_state_dict(self, state: dict) -> None:
        """Restore the rings and make the live weights the current version."""
        self.current = state["current"]
        for ring, live, kept in zip(self.rings, self.live, state["kept"], strict=True):
            if ring is None:
                live.copy_(kept)
            else:
                ring.data.copy_(kept)
                live.copy_(ring.slot(self.current))


class DeviceHistory(History):
    """A history on the device of the weights. `depths[s]`: how many versions before the current one stage s keeps, None
    where it needs no ring."""

    def __init__(self, live: Sequence[Tensor], depths: Sequence[int | None]) -> None:
        flat = [tensor.detach() for tensor in live]
        super().__init__(flat, make_rings(flat, [0 if depth is None else depth + 1 for depth in depths]))
        self._spared: set[int] = set()
        self._stored: set[int] = set()

    def version(self, stage: int, version: int) -> Tensor:
        return self._slot(stage, version, stage in self._spared)

    def spare(self, stage: int) -> Tensor:
        """The slot of the next version. The oldest version, which stands there, is given up for it."""
        ring = self.rings[stage]
        if ring is None or len(ring) < 2:
            raise LookupError(f"stage {stage} keeps no past version to give up")
        self._spared.add(stage)
        return ring.slot(self.current + 1)

    def change(self, stage: int) -> Tensor:
        ring = self._ring(stage)
        return torch.sub(self.live[stage], ring.slot(self.current), out=ring.slot(self.current + 1))

    def store(self, stage: int) -> None:
        """On a CPU, write the next version over the change while both are in the cache. On other devices `push` writes
        all stages at once."""
        ring = self.rings[stage]
        if ring is not None and self.live[stage].device.type == "cpu":
            ring.slot(self.current + 1).copy_(self.live[stage])
            self._stored.add(stage)

    def push(self) -> None:
        self.current += 1
        kept = [
            (ring.slot(self.current), live)
            for stage, (ring, live) in enumerate(zip(self.rings, self.live, strict=True))
            if ring is not None and stage not in self._stored
        ]
        if kept:
            torch._foreach_copy_([slot for slot, _ in kept], [live for _, live in kept])
        self._spared.clear()
        self._stored.clear()

    def state_dict(self) -> dict:
        if self._spared:
            raise RuntimeError("in the middle of a step the oldest versions may have made room for estimates")
        return super().state_dict()

    def load_state_dict(self, state: dict) -> None:
        self._spared.clear()
        super().load_state_dict(state)
