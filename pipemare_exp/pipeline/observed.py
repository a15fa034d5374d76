"""What an engine tells of a step, and of the state after it, to whoever watches: read only, training never looks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Staleness:
    """How far apart the weights of one step t are, stage by stage, as Euclidean norms; docs/output.md has the formulas.

    None stands for a quotient by zero.
    """

    staleness: list[float | None]
    """||w_t - w_fwd|| / ||w_t||, the mean over the microbatches: how stale the forwards' weights are."""
    t2_error: list[float | None]
    """||u_bkwd - w_fwd|| / ||w_t - w_fwd||, each summed over the microbatches: below 1 the backward's weights are
    nearer to the forward's than w_t is. None where every forward reads w_t."""
    update: list[float | None]
    """||w_{t+1} - w_t|| / ||w_t||: the relative size of the update."""
    grad_norm: list[float]
    """The norm of the stage's gradient, before clipping."""


@dataclass(frozen=True)
class Observed:
    """Of one step: `grad_norm`, the Euclidean norm of the minibatch's gradient over all stages, before clipping;
    `max_delay`, the most steps by which a forward's weights were older than w_t, over stages and microbatches."""

    grad_norm: float
    max_delay: int
    staleness: Staleness | None = None


def total_norm(norms: Iterable[float]) -> float:
    """The norm over all stages, from the norm of each."""
    return math.sqrt(sum(norm * norm for norm in norms))


@torch.no_grad()
def norms(tensors: Sequence[Tensor]) -> Tensor:
    """The Euclidean norm of each tensor, on their device. Summed in float64: the square of a large finite number is no
    number in float32."""
    return torch.stack(torch._foreach_norm([tensor.detach() for tensor in tensors], 2, dtype=torch.float64))


@torch.no_grad()
def non_finite(tensors: Iterable[Tensor]) -> int:
    """How many numbers in `tensors` are infinite or no number. Waits for the device."""
    return sum(tensor.numel() - int(torch.isfinite(tensor).sum()) for tensor in tensors)


def finite_buffers(model: nn.Module) -> list[str]:
    """The names of the model's buffers that hold finite numbers only.

    Asked before training, it tells statistics, which must stay finite, from masks that hold -inf on purpose.
    """
    return [name for name, buffer in model.named_buffers() if not non_finite([buffer])]
