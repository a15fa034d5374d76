"""Arithmetic in bf16 with weights in fp32, and TF32.

bf16: history, optimizer and gradient sums stay in fp32 (the masters); the model's parameters are views of a second,
bf16 flat buffer, refilled from the masters whenever these are brought to another version. The tensors that operations
save for the backward are then the parameters themselves, as in fp32, so the backward reads the weights that are swapped
in. Autocast would save cast copies of the forward's weights instead: it stays refused.

BatchNorm keeps its parameters and running statistics in fp32 (statistics with 8 bits would stand still); it takes and
gives bf16 activations. The model casts its floating inputs to bf16 and its output back, so the loss is in fp32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from pipemare_exp.errors import UserError
from pipemare_exp.pipeline.weights.flat import FlatWeights

CHOICES = ("fp32", "tf32", "bf16")
LOW = torch.bfloat16


class LowPrecisionWeights(FlatWeights):
    """`FlatWeights` whose model computes in bf16: `weights` and `gradients` are the fp32 masters and sums, `low` and
    `low_gradients` what the parameters and their gradients are views of, at the same offsets."""

    def __init__(self, model: nn.Module, stage_parameters: Sequence[Sequence[str]], split: int = 1) -> None:
        if any(parameter.dtype != torch.float32 for parameter in model.parameters()):
            raise UserError("precision=bf16: the model must be built in fp32, which its masters keep")
        super().__init__(model, stage_parameters, split)
        kept = {id(p) for module in model.modules() if isinstance(module, _BatchNorm) for p in module.parameters()}
        self.low = self.weights.to(LOW)
        self.low_gradients = torch.zeros_like(self.low)
        self._parameters = [
            (parameter, master, gradient) if id(parameter) in kept else self._lower(parameter, master)
            for parameter, master, gradient in self._parameters
        ]
        model.register_forward_pre_hook(_to_low)
        model.register_forward_hook(_to_full)

    def _lower(self, parameter: nn.Parameter, master: Tensor) -> tuple[nn.Parameter, Tensor, Tensor]:
        where = master.size(), master.stride(), master.storage_offset()
        view, gradient = self.low.as_strided(*where), self.low_gradients.as_strided(*where)
        parameter.grad = None  # of another type than the data would be refused
        parameter.data = view
        parameter.grad = gradient
        return parameter, view, gradient

    @property
    def copies(self) -> list[Tensor]:
        return [self.weights, self.low]

    @property
    def sums(self) -> list[Tensor]:
        return [self.gradients, self.low_gradients]

    def refresh(self) -> None:
        self.low.copy_(self.weights)

    def collect(self) -> None:
        self.gradients.add_(self.low_gradients)
        self.low_gradients.zero_()


def flat_weights(precision: str, model: nn.Module, stages: Sequence[Sequence[str]], split: int) -> FlatWeights:
    """The flat weights of `model` for the arithmetic `precision` (fp32 and tf32 have the same)."""
    kind = LowPrecisionWeights if precision == "bf16" else FlatWeights
    return kind(model, stages, split)


def allow_tf32(allowed: bool) -> None:
    """Whether a GPU may round the factors of fp32 products to TF32's 11 bits. torch allows it for convolutions unless
    told otherwise, so fp32 has to be asked for."""
    torch.backends.cuda.matmul.allow_tf32 = allowed
    torch.backends.cudnn.allow_tf32 = allowed


def _to_low(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(x.to(LOW) if isinstance(x, Tensor) and x.is_floating_point() else x for x in inputs)


def _to_full(_: nn.Module, __: Any, output: Any) -> Any:
    return output.float() if isinstance(output, Tensor) and output.dtype == LOW else output
