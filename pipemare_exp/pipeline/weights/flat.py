"""A model's weights in one flat buffer, cut into stages, and their gradients in another."""

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
    slice, whose `.grad` is the same slice of `gradients`; a stage without parameters here is empty. Padding between
    parameters stays zero. With `split` = k every stage given becomes k stages of (nearly) equal parts of its slice.
    """

    def __init__(self, model: nn.Module, stage_parameters: Sequence[Sequence[str]], split: int = 1) -> None:
        named = dict(model.named_parameters())
        chosen = [[named[name] for name in names] for names in stage_parameters]
        first = next(parameter for stage in chosen for parameter in stage)
        for name, parameter in named.items():
            if parameter.dtype != first.dtype or parameter.device != first.device:
                raise ValueError(
                    f"parameter {name} is {parameter.dtype} on {parameter.device}, others are {first.dtype} on "
                    f"{first.device}: one flat buffer needs one dtype and one device"
                )
        self.split = split
        align = max(_ALIGN_BYTES // first.element_size(), 1)
        offsets, starts, total = [], [], 0
        for stage in chosen:
            starts.append(total)
            for parameter in stage:
                offsets.append(total)
                total += -(-parameter.numel() // align) * align
        self.weights = torch.zeros(total, dtype=first.dtype, device=first.device)
        self.gradients = torch.zeros_like(self.weights)
        places = iter(offsets)
        self._views = [[self._adopt(parameter, next(places)) for parameter in stage] for stage in chosen]
        """Per stage: each parameter's views of `weights` and of `gradients`."""
        self._parameters = [
            (parameter, *views)
            for stage, its_views in zip(chosen, self._views, strict=True)
            for parameter, views in zip(stage, its_views, strict=True)
        ]
        """Each parameter of the model, and where it and its gradient must lie."""
        self.stages: list[nn.Parameter] = []
        self.stage_gradients: list[Tensor] = []
        for index, (start, end) in enumerate(zip(starts, [*starts[1:], total], strict=True)):
            edges = [start, *self._cuts(index), end]
            for low, high in zip(edges, edges[1:], strict=False):
                flat = nn.Parameter(self.weights[low:high])
                flat.grad = self.gradients[low:high]
                self.stages.append(flat)
                self.stage_gradients.append(flat.grad)

    def _adopt(self, parameter: nn.Parameter, offset: int) -> tuple[Tensor, Tensor]:
        size, stride = parameter.size(), parameter.stride()
        span = 1 + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
        if span != parameter.numel():  # overlapping or with holes: give it the plain layout
            stride = parameter.contiguous().stride()
        view, gradient = (flat.as_strided(size, stride, offset) for flat in (self.weights, self.gradients))
        view.copy_(parameter.detach())
        parameter.data = view
        parameter.grad = gradient
        return view, gradient

    def _cuts(self, stage: int) -> list[int]:
        """Where stage's slice is cut into `split` parts of (nearly) equal numbers of weights, padding not counted."""
        views = [view for view, _ in self._views[stage]]
        total = sum(view.numel() for view in views)
        if 0 < total < self.split:
            raise UserError(f"pipeline.split={self.split}: stage {stage} has only {total} weights, fewer than parts")
        cuts = []
        for part in range(1, self.split):
            place = total * part // self.split
            for view in views:
                if place < view.numel():
                    cuts.append(int(view.storage_offset()) + place)
                    break
                place -= view.numel()
        return cuts

    def shaped(self, stage: int) -> list[nn.Parameter]:
        """The parameters of `stage` in forward order, each as a tensor of its own shape: a view of `weights` whose
        `.grad` is the view of `gradients`. For an optimizer that looks at matrices."""
        if self.split != 1:
            raise UserError(f"pipeline.split={self.split}: an optimizer over whole tensors cannot have them split")
        made = []
        for view, gradient in self._views[stage]:
            made.append(nn.Parameter(view))
            made[-1].grad = gradient
        return made

    def by_rank(self, stage: int) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
        """Flat parameters that cover `stage`: over its matrices (and tensors of more dimensions), and over its vectors.

        Parameters of one kind that follow each other share one.
        """
        flat = self.stages[stage]
        low, high = flat.storage_offset(), flat.storage_offset() + flat.numel()
        kinds: list[tuple[int, bool]] = []  # where matrices begin (True), or vectors
        for view, _ in self._views[stage // self.split]:
            if not kinds or kinds[-1][1] != (view.dim() > 1):
                kinds.append((int(view.storage_offset()), view.dim() > 1))
        found: dict[bool, list[nn.Parameter]] = {True: [], False: []}
        for (start, kind), (end, _) in zip(kinds, [*kinds[1:], (high, False)], strict=True):
            begin, end = max(start, low), min(end, high)
            if begin < end:
                part = nn.Parameter(self.weights[begin:end])
                part.grad = self.gradients[begin:end]
                found[kind].append(part)
        return found[True], found[False]

    def check(self) -> None:
        """Raise RuntimeError if a parameter or gradient has left the flat buffers.

        `.to(...)`, a rebound `.data` or `zero_grad()` (which sets gradients to None) does that, and training would go
        on with weights that no stage owns.
        """
        for parameter, view, gradient in self._parameters:
            given = parameter.grad
            if parameter.data_ptr() != view.data_ptr() or given is None or given.data_ptr() != gradient.data_ptr():
                raise RuntimeError(
                    f"a parameter is no longer a view of its stage's flat buffer ({view.dtype}): the model was moved, "
                    "converted, or its gradients were set to None after the engine took it"
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
        """Make what the model computes with from the live weights; nothing where it computes with them themselves."""

    def collect(self) -> None:
        """Add a microbatch's gradients to `gradients`; nothing where the backward adds to them itself."""

    def compact(self) -> list[Tensor]:
        """A copy of each stage's weights without padding, its parameters flattened in order (logical layout)."""
        nothing = self.weights.new_empty(0)
        return [torch.cat([nothing, *(view.reshape(-1) for view, _ in stage)]) for stage in self._views]
