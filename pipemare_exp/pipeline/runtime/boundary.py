"""What crosses from one stage to the next, and where a graph begins anew there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from pipemare_exp.pipeline.model.units import State
from pipemare_exp.pipeline.weights.reads import Read

Sent = tuple[State | None, tuple[bool, ...]]
"""The tensors that go to the next stage (None for an empty microbatch), and which of them want a gradient."""


@dataclass
class InFlight:
    """A microbatch at a stage between the pass that made its autograd graph and its backward.

    - `inputs`: the leaves of the graph, None at the first stage; `outputs`: what the pass gave;
    - `read`: the weights that it read;
    - `recomputed`: whether the pass was a recomputation, and not the forward.
    """

    inputs: State | None
    outputs: State
    read: Read
    recomputed: bool = False


def leaves(tensors: Sequence[Tensor], grads: Sequence[bool] | None) -> State:
    """The tensors as the beginnings of a graph of their own; `grads` None: a gradient for all that can have one."""
    wanted = [True] * len(tensors) if grads is None else grads
    return tuple(
        tensor.detach().requires_grad_(bool(wants) and tensor.is_floating_point())
        for tensor, wants in zip(tensors, wanted, strict=True)
    )


def restored(saved: dict[str, Any]) -> Sent:
    """An output that was under way, out of a checkpoint."""
    return None if saved["tensors"] is None else leaves(saved["tensors"], saved["grads"]), tuple(saved["grads"])


def sent_of(outputs: State) -> Sent:
    return outputs, tuple(tensor.requires_grad for tensor in outputs)
