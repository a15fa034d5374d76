"""Notices a loss that is a mean over the microbatch where its share of the minibatch's loss is wanted.

With N microbatches such a loss, and every gradient, is N times too large, and nothing else shows it.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from pipemare_exp.pipeline.emulator.microbatch_tensors import kept

OF_CLASSES = (F.cross_entropy, F.nll_loss)
OF_NUMBERS = (F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.binary_cross_entropy_with_logits)
"""The losses that are recognised."""


class MeanLossWatch:
    """Keeps what `model` gives out until `look`, which compares a microbatch's loss with the means that torch takes of
    that output and the microbatch's tensors. What is computed with the model stays as it is."""

    def __init__(self, model: nn.Module) -> None:
        self._output: Tensor | None = None
        self._hook = model.register_forward_hook(self._keep)

    def _keep(self, model: nn.Module, _: Any, output: Any) -> None:
        if model.training and isinstance(output, Tensor):
            self._output = output.detach()

    def look(self, microbatch: Any, share: Tensor) -> None:
        """Warn if `share`, the loss of `microbatch`, is a mean over it. Looks once: nothing is kept afterwards."""
        self._hook.remove()
        output, self._output = self._output, None
        tensors: list[Tensor] = []
        try:
            kept(microbatch, tensors)
        except TypeError:
            return
        if output is None or not output.is_floating_point() or output.dim() < 1:
            return
        value, output = float(share), output.cpu()  # on the CPU a label out of range is an exception
        means = (mean for tensor in tensors for mean in _means(output, tensor.detach().cpu()))
        if any(mean != 0 and math.isclose(mean, value, rel_tol=1e-4) for mean in means):
            warnings.warn(
                "the loss of a microbatch is the mean over its examples. It has to be the microbatch's share of the "
                "minibatch's loss (the sum over its examples, divided by the examples of the whole minibatch): as it "
                "is, gradients are as many times too large as there are microbatches",
                stacklevel=3,
            )


def _means(output: Tensor, target: Tensor) -> Iterator[float]:
    """Torch's mean losses of `output` with this target, if it can be one."""
    if target.is_floating_point():
        if output.numel() == target.numel():
            yield from (float(mean(output.flatten(), target.flatten().to(output))) for mean in OF_NUMBERS)
        return
    for scores, classes in ((output, target), (output.flatten(0, -2), target.flatten())):
        try:
            yield from (float(mean(scores, classes)) for mean in OF_CLASSES)
        except (RuntimeError, IndexError, ValueError):  # of other shapes, or numbers that are no classes
            continue
