"""A model's weights as one flat buffer cut into stages, and the ring of each stage's past versions."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from pipemare_exp.errors import UserError

# Every parameter starts on a cache line of its own, as it would in a tensor of its own: vectorised kernels may round
# differently on other alignments, and the emulator has to equal plain training bit for bit.
_ALIGN_BYTES = 64


class FlatWeights:
    """Moves a model's parameters into one buffer, stage after stage, and their gradients into another.

    The parameters stay the same objects and become views with their own strides (channels-last ones too), so the
    model must have its final device, dtype and memory format before. `stages[s]` is a flat Parameter over stage s's
    slice, whose `.grad` is the same slice of `gradients`: what the optimizer works on. Padding between parameters
    stays zero. With `split` = k every stage given becomes k stages of (nearly) equal parts of its slice.
    """

    def __init__(self, model: nn.Module, stage_parameters: Sequence[Sequence[str]], split: int = 1) -> None:
        named = dict(model.named_parameters())
        chosen = [[named[name] for name in names] for names in stage_parameters]
        first = chosen[0][0]
        for name, parameter in named.items():
            if parameter.dtype != first.dtype or parameter.device != first.device:
                raise ValueError(
                    f"parameter {name} is {parameter.dtype} on {parameter.device}, others are {first.dtype} on "
                    f"{first.device}: one flat buffer needs one dtype and one device"
                )
        align = max(_ALIGN_BYTES // first.element_size(), 1)
        offsets, starts, total = [], [], 0
        for stage in chosen:
            starts.append(total)
            for parameter in stage:
                offsets.append(total)
                total += -(-parameter.numel() // align) * align
        self.weights = torch.zeros(total, dtype=first.dtype, device=first.device)
        self.gradients = torch.zeros_like(self.weights)
        self._views: list[list[tuple[nn.Parameter, Tensor]]] = []
        places = iter(offsets)
        for stage in chosen:
            self._views.append([(p, self._adopt(p, next(places))) for p in stage])
        self.stages: list[nn.Parameter] = []
        self.stage_gradients: list[Tensor] = []
        for index, (start, end) in enumerate(zip(starts, [*starts[1:], total], strict=True)):
            edges = [start, *self._cuts(index, split), end]
            for low, high in zip(edges, edges[1:], strict=False):
                flat = nn.Parameter(self.weights[low:high])
                flat.grad = self.gradients[low:high]
                self.stages.append(flat)
                self.stage_gradients.append(flat.grad)

    def _adopt(self, parameter: nn.Parameter, offset: int) -> Tensor:
        size, stride = parameter.size(), parameter.stride()
        span = 1 + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
        if span != parameter.numel():  # overlapping or with holes: give it the plain layout
            stride = parameter.contiguous().stride()
        view = self.weights.as_strided(size, stride, offset)
        view.copy_(parameter.detach())
        parameter.data = view
        parameter.grad = self.gradients.as_strided(size, stride, offset)
        return view

    def _cuts(self, stage: int, split: int) -> list[int]:
        """Where stage's slice is cut into `split` parts of (nearly) equal numbers of weights, padding not counted."""
        views = [view for _, view in self._views[stage]]
        total = sum(view.numel() for view in views)
        if total < split:
            raise UserError(f"pipeline.split={split}: stage {stage} has only {total} weights, fewer than parts")
        cuts = []
        for part in range(1, split):
            place = total * part // split
            for view in views:
                if place < view.numel():
                    cuts.append(int(view.storage_offset()) + place)
                    break
                place -= view.numel()
        return cuts

    def check(self) -> None:
        """Raise RuntimeError if a parameter or gradient has left the flat buffers.

        `.to(...)`, a rebound `.data` or `zero_grad()` (which sets gradients to None) does that, and training would go
        on with weights that no stage owns.
        """
        low, high = self.gradients.data_ptr(), self.gradients.data_ptr() + self.gradients.nbytes
        for stage in self._views:
            for parameter, view in stage:
                inside = parameter.grad is not None and low <= parameter.grad.data_ptr() < high
                if parameter.data_ptr() != view.data_ptr() or not inside:
                    raise RuntimeError(
                        "a parameter is no longer a view of its stage's flat buffer: the model was moved, converted, "
                        "or its gradients were set to None after the emulator took it"
                    )

    @property
    def copies(self) -> list[Tensor]:
        """The live weights, in every type that they are held in."""
        return [self.weights]

    @property
    def sums(self) -> list[Tensor]:
        """What backward passes add to."""
        return [self.gradients]

    def refresh(self) -> None:
        """Make what the model computes with the live weights; nothing where it computes with them themselves."""

    def collect(self) -> None:
        """Add a microbatch's gradients to `gradients`; nothing where the backward adds to them itself."""

    def compact(self) -> list[Tensor]:
        """A copy of each stage's weights without padding, its parameters flattened in order (logical layout)."""
        return [torch.cat([view.reshape(-1) for _, view in stage]).clone() for stage in self._views]


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
    sizes = [length * flat.numel() for flat, length in zip(weights, lengths, strict=True)]
    parts = weights[0].new_zeros(sum(sizes)).split(sizes)
    return [
        Ring(part.view(length, flat.numel())) if length else None
        for part, length, flat in zip(parts, lengths, weights, strict=True)
    ]


class History:
    """Per stage, a ring of the current version and the `depth` versions before it.

    `depths[s]` is None for a stage whose passes only ever read its current weights as they are: it has no ring, its
    live slice is the current version. Otherwise its ring has depth + 1 versions, and the live slice is free to be
    overwritten with whatever a pass reads.
    """

    def __init__(self, live: Sequence[Tensor], depths: Sequence[int | None]) -> None:
        self.live = [tensor.detach() for tensor in live]
        self.current = 0
        self._spared: set[int] = set()
        self._pushed: set[int] = set()
        self.rings = make_rings(self.live, [0 if depth is None else depth + 1 for depth in depths])
        for ring, flat in zip(self.rings, self.live, strict=True):
            if ring is not None:
                ring.slot(0).copy_(flat)

    def version(self, stage: int, version: int) -> Tensor:
        """The weights of `stage` after `version` updates. Raises LookupError for one that is not kept."""
        ring = self.rings[stage]
        kept = 1 if ring is None else len(ring) - (stage in self._spared)
        if not max(0, self.current - kept + 1) <= version <= self.current:
            raise LookupError(
                f"stage {stage} at version {self.current} keeps {kept} versions; version {version} is not kept"
            )
        return self.live[stage] if ring is None else ring.slot(version)

    def spare(self, stage: int) -> Tensor:
        """Memory of the stage's size, free until `push` or `change`: where the next version will stand. The oldest
        version is given up for it."""
        ring = self.rings[stage]
        if ring is None or len(ring) < 2:
            raise LookupError(f"stage {stage} keeps no past version to give up")
        self._spared.add(stage)
        return ring.slot(self.current + 1)

    def change(self, stage: int) -> Tensor:
        """`live - current version`, written where the next version will stand. Call before `push`."""
        ring = self.rings[stage]
        if ring is None:
            raise LookupError(f"stage {stage} keeps no copy to take a difference from")
        return torch.sub(self.live[stage], ring.slot(self.current), out=ring.slot(self.current + 1))

    def push_early(self, stage: int) -> None:
        """Write a stage's live weights to where `push` would, which then leaves them out: over the `change` there,
        while both are in a CPU's cache. On other devices `push` writes all stages at once."""
        ring = self.rings[stage]
        if ring is not None and self.live[stage].device.type == "cpu":
            ring.slot(self.current + 1).copy_(self.live[stage])
            self._pushed.add(stage)

    def push(self) -> None:
        """Take the live weights as the next version, over the oldest one of each ring."""
        self.current += 1
        kept = [
            (ring.slot(self.current), live)
            for stage, (ring, live) in enumerate(zip(self.rings, self.live, strict=True))
            if ring is not None and stage not in self._pushed
        ]
        if kept:
            torch._foreach_copy_([slot for slot, _ in kept], [live for _, live in kept])
        self._spared.clear()
        self._pushed.clear()

    def nbytes(self) -> int:
        return sum(ring.data.nbytes for ring in self.rings if ring is not None)

    def state_dict(self) -> dict:
        """Rings as they are; for a stage without one its live weights, which must be the current version now."""
        if self._spared:
            raise RuntimeError("in the middle of a step the oldest versions may have made room for estimates")
        kept = [live.clone() if ring is None else ring.data for ring, live in zip(self.rings, self.live, strict=True)]
        return {"current": self.current, "kept": kept}

    def load_state_dict(self, state: dict) -> None:
        """Restore the rings and make the live weights the current version."""
        self.current = state["current"]
        self._spared.clear()
        for ring, live, kept in zip(self.rings, self.live, state["kept"], strict=True):
            if ring is None:
                live.copy_(kept)
            else:
                ring.data.copy_(kept)
                live.copy_(ring.slot(self.current))
