"""How long each piece of a model takes, so that stages can be cut to take equally long."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

import torch
from torch import nn

from pipemare_exp.pipeline.model.recompute import frozen_statistics
from pipemare_exp.pipeline.model.units import Piece, State, choose_boundaries
from pipemare_exp.pipeline.runtime.boundary import leaves


def piece_seconds(model: nn.Module, cut: Sequence[Piece], inputs: State, repeats: int = 5) -> list[float]:
    """Seconds of forward and backward of each piece, the median of `repeats` passes over one microbatch's `inputs`.

    The model is run in its mode; parameters' gradients are put back, and BatchNorm's statistics are not touched.
    """
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    for parameter, _ in gradients:
        parameter.grad = None
    times: list[list[float]] = [[] for _ in cut]
    with frozen_statistics(model.modules()):
        for _ in range(repeats + 1):  # the first pass allocates
            state, steps = inputs, []
            for index, piece in enumerate(cut):
                begun = time.perf_counter()
                # The model's own inputs want no gradient, and none is computed where the first stage trains.
                entered = leaves(state, [index > 0 and tensor.is_floating_point() for tensor in state])
                state = piece.run(entered)
                _wait(state)
                steps.append((entered, state, time.perf_counter() - begun))
            gradient = [torch.ones_like(tensor) if tensor.requires_grad else None for tensor in state]
            for index in reversed(range(len(cut))):
                entered, left, seconds = steps[index]
                roots = [(t, g) for t, g in zip(left, gradient, strict=True) if t.requires_grad and g is not None]
                begun = time.perf_counter()
                torch.autograd.backward([t for t, _ in roots], [g for _, g in roots])
                gradient = [tensor.grad for tensor in entered]
                _wait(left)
                times[index].append(seconds + time.perf_counter() - begun)
    for parameter, before in gradients:
        parameter.grad = before
    return [statistics.median(found[1:]) for found in times]


def _wait(state: State) -> None:
    if state[0].is_cuda:
        torch.cuda.synchronize(state[0].device)


def balanced_pieces(seconds: Sequence[float], stages: int) -> list[int]:
    """The first piece of each of `stages` contiguous groups whose largest sum of `seconds` is as small as possible."""
    return choose_boundaries([max(1, round(value * 1e9)) for value in seconds], stages)
