"""Activation recomputation: a model in segments of which only the inputs are kept, run again before the backward.

A first forward keeps the input of every segment. A second one, with the weights of the moment of recomputation, starts
each segment from the input that was kept and records the graph that the backward uses. The gradient then goes from
segment to segment, from the loss to the front.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from pipemare_exp.errors import UserError
from pipemare_exp.pipeline.model.units import Piece, State, Unit, pieces


def piece_starts(model: nn.Module, units: Sequence[Unit], cut: Sequence[Piece]) -> list[int]:
    """The first weight unit of each piece, as an index into `units` (both in forward order).

    Raises UserError where a piece has tied weights only, and ValueError where the pieces do not own whole units in
    forward order, each exactly once.
    """
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    owner: dict[str, int] = {}
    for index, piece in enumerate(cut):
        for module in piece.modules:
            for parameter in module.parameters():
                owner.setdefault(names[id(parameter)], index)
    for index, piece in enumerate(cut):
        used = [names[id(parameter)] for module in piece.modules for parameter in module.parameters()]
        if used and all(owner[name] < index for name in used):
            raise UserError(
                f"{used[0]} is tied: the pieces {cut[owner[used[0]]].name} and {piece.name} share it, so the second "
                "has no weights of its own and the model cannot be cut before it; untie it (model.tying=none), or take "
                "engine=emulator without recomputation and without pipeline.cut=pieces"
            )
    owners = [{owner.get(name, -1) for name in unit.parameters} for unit in units]
    if any(len(found) != 1 or -1 in found for found in owners):
        raise ValueError(
            "a weight unit lies in several pieces or in none: pieces must own whole units, and all of them"
        )
    order = [found.pop() for found in owners]
    if order != sorted(order) or set(order) != set(range(len(cut))):
        raise ValueError("the pieces do not follow the weight units in forward order, each owning at least one")
    return [order.index(index) for index in range(len(cut))]


class Segments:
    """`model` in segments of `segment` stages, cut where pieces begin; the one at the loss may be shorter.

    `units` and `boundaries`: the weight units in forward order and the first unit of each stage.

    Raises UserError where a segment would begin inside a piece, and for more stages than pieces.
    """

    def __init__(self, model: nn.Module, units: Sequence[Unit], boundaries: Sequence[int], segment: int) -> None:
        cut = pieces(model)
        starts = piece_starts(model, units, cut)
        wanted = list(boundaries)[::segment]
        inside = [unit for unit in wanted if unit not in starts]
        if inside:
            raise UserError(
                f"pipeline.recompute={segment}: a segment would begin at weight unit {inside[0]} "
                f"({units[inside[0]].name}), inside a piece that cannot be cut; the {len(cut)} pieces begin at units "
                f"{starts}: choose pipeline.stages (at most {len(cut)}) or pipeline.boundaries to match"
            )
        if len(boundaries) > len(cut):
            raise UserError(
                f"pipeline.recompute={segment}: {len(boundaries)} stages, but the model can be cut into {len(cut)} "
                f"pieces only; take pipeline.stages={len(cut)} or fewer with pipeline.cut=pieces"
            )
        edges = [starts.index(unit) for unit in wanted] + [len(cut)]
        self._parts = [cut[a:b] for a, b in zip(edges, edges[1:], strict=False)]
        self._model = model
        self._inputs: list[State] = []
        self._outputs: list[State] = []

    @contextmanager
    def keeping_inputs(self) -> Iterator[Any]:
        """A stand-in for the model whose forward keeps every segment's input and no graph."""
        with torch.no_grad():
            yield StandIn(self._model, self._forward)

    @contextmanager
    def recomputing(self) -> Iterator[Any]:
        """A stand-in for the model whose forward starts every segment from its kept input and leaves no trace in
        BatchNorm's running statistics."""
        with frozen_statistics(self._model.modules()):
            yield StandIn(self._model, self._recompute)

    def _forward(self, *inputs: Tensor) -> Tensor:
        self._inputs = []
        state: State = inputs
        for part in self._parts:
            self._inputs.append(state)
            state = run_pieces(part, state)
        return state[0]

    def _recompute(self, *inputs: Tensor) -> Tensor:
        self._outputs = []
        for index, part in enumerate(self._parts):
            if index > 0:  # the first segment's input is data
                leaves = (t.detach().requires_grad_(t.is_floating_point()) for t in self._inputs[index])
                self._inputs[index] = tuple(leaves)
            self._outputs.append(run_pieces(part, self._inputs[index]))
        return self._outputs[-1][0]

    def backward(self, loss: Tensor) -> None:
        """Accumulate the weights' gradients of `loss`, computed from what `recomputing` gave."""
        loss.backward()
        for index in range(len(self._parts) - 2, -1, -1):
            roots = [
                (output, after.grad)
                for output, after in zip(self._outputs[index], self._inputs[index + 1], strict=True)
                if output.requires_grad and after.grad is not None
            ]
            torch.autograd.backward([output for output, _ in roots], [gradient for _, gradient in roots])
        self._inputs, self._outputs = [], []


@contextmanager
def frozen_statistics(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Within, a BatchNorm among `modules` normalises as in training and leaves its running statistics as they are."""
    tracking = [m for m in modules if isinstance(m, _BatchNorm) and m.track_running_stats and m.training]
    for norm in tracking:
        norm.track_running_stats = False
    try:
        yield
    finally:
        for norm in tracking:
            norm.track_running_stats = True


class StandIn:
    """Called like the model, it runs something else after the model's own pre-hooks; attributes are the model's."""

    def __init__(self, model: nn.Module, run: Any) -> None:
        self._model, self._run = model, run

    def __call__(self, *inputs: Tensor) -> Tensor:
        for hook in self._model._forward_pre_hooks.values():  # what refuses a forward refuses this one too
            hook(self._model, inputs)
        return self._run(*inputs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


def run_pieces(part: Sequence[Piece], state: State) -> State:
    """The state after the pieces `part`, from the state before them."""
    for piece in part:
        state = piece.run(state)
    return state
