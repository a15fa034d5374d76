"""The ways in which the emulator runs a microbatch, and the one place that chooses among them.

All give the same bits. They differ in how the backward gets weights that are not the forward's:

- `Copying` copies them over the live weights between the two passes;
- `Captured` does so between two CUDA graphs, which replay the kernels of the two passes;
- `Beside` leaves the live weights alone: the backward reads its weights where they are kept, beside the live ones;
- `Recomputing` runs the forward a second time before the backward, and copies before each of the three.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from pipemare_exp.errors import UserError
from pipemare_exp.pipeline.emulator import cuda_graphs
from pipemare_exp.pipeline.emulator.backward_weights import WORTHWHILE, BackwardWeights
from pipemare_exp.pipeline.engine import Loss
from pipemare_exp.pipeline.model.dropout import KeyedDropout
from pipemare_exp.pipeline.model.recompute import Segments
from pipemare_exp.pipeline.shape import Pipeline
from pipemare_exp.pipeline.stage_weights import StageWeights
from pipemare_exp.pipeline.weights import precision
from pipemare_exp.pipeline.weights.flat import FlatWeights
from pipemare_exp.pipeline.weights.staged_copies import BACKWARD


@dataclass(frozen=True)
class Execution:
    """How an emulator computes. But for `precision` no choice changes a bit of the result, only time and memory.

    - `graphs`: "auto" (on a GPU, where it can be had), "on" or "off": microbatches are captured in CUDA graphs;
    - `precision`: "fp32" or "tf32", which are the same here, or "bf16" (see weights/precision.py);
    - `history`: where old versions lie, on the "device" or in the memory of the "host" (see weights/host_history.py);
    - `beside`: True lets the backward read its weights beside the live ones where that can be had, False copies them,
      None takes the cheaper of the two: beside, on a CPU and where the weights are large.
    """

    graphs: str = "off"
    precision: str = "fp32"
    history: str = "device"
    beside: bool | None = None

    def __post_init__(self) -> None:
        for name, value, allowed in (
            ("engine.graphs", self.graphs, cuda_graphs.CHOICES),
            ("precision", self.precision, precision.CHOICES),
            ("engine.history", self.history, ("device", "host")),
        ):
            if value not in allowed:
                raise UserError(f"{name}={value}: allowed are {', '.join(allowed)}")


class Copying:
    """The backward's weights are copied over the live ones, behind autograd's back."""

    def __init__(
        self, model: nn.Module, pipeline: Pipeline, weights: StageWeights, dropout: KeyedDropout, execution: Execution
    ) -> None:
        self.model, self.weights, self.dropout = model, weights, dropout
        self.method, self.flat = weights.method, weights.flat

    def run(self, step: int, n: int, microbatch: Any, loss: Loss) -> Tensor:
        """Forward and backward of microbatch `n` of `step`, for which the live weights are the forward's; returns its
        loss, detached. The gradients are added to those of the microbatches before."""
        with self.dropout.at(step, n):
            share = loss(self.model, microbatch)
        self.weights.load(self.method.backward(step, n), BACKWARD)
        share.backward()
        self.flat.collect()
        return share.detach()


class Captured(Copying):
    """Both passes are CUDA graphs once the microbatch's shapes have been met before; until then they are run eagerly.

    `captures`: the microbatches captured so far.
    """

    def __init__(
        self, model: nn.Module, pipeline: Pipeline, weights: StageWeights, dropout: KeyedDropout, execution: Execution
    ) -> None:
        super().__init__(model, pipeline, weights, dropout, execution)
        self.captures = cuda_graphs.Captures(model, weights.flat, required=execution.graphs == "on")

    def run(self, step: int, n: int, microbatch: Any, loss: Loss) -> Tensor:
        found = self.captures.find(microbatch, loss)
        if found is None:
            return super().run(step, n, microbatch, loss)
        with self.dropout.at(step, n):
            share = found.captured.forward(found.tensors)
        self.weights.load(self.method.backward(step, n), BACKWARD)
        found.captured.backward()
        self.flat.collect()
        return share.detach()


class Beside(Copying):
    """The backward reads its weights beside the live ones, where these are not what it wants anyway."""

    def __init__(
        self, model: nn.Module, pipeline: Pipeline, weights: StageWeights, dropout: KeyedDropout, execution: Execution
    ) -> None:
        super().__init__(model, pipeline, weights, dropout, execution)
        self.backward_weights = BackwardWeights(weights)

    def run(self, step: int, n: int, microbatch: Any, loss: Loss) -> Tensor:
        reads = self.method.backward(step, n)
        if self.weights.holds(reads):
            return super().run(step, n, microbatch, loss)
        with self.dropout.at(step, n), self.backward_weights.saving():
            share = loss(self.model, microbatch)
        self.backward_weights.read(reads)
        share.backward()
        return share.detach()


class Recomputing(Copying):
    """The forward keeps the inputs of segments only; activations are computed again, with the weights of that moment,
    before the backward."""

    def __init__(
        self, model: nn.Module, pipeline: Pipeline, weights: StageWeights, dropout: KeyedDropout, execution: Execution
    ) -> None:
        super().__init__(model, pipeline, weights, dropout, execution)
        assert pipeline.segment is not None
        self.segments = Segments(model, pipeline.units, pipeline.boundaries, pipeline.segment)

    def run(self, step: int, n: int, microbatch: Any, loss: Loss) -> Tensor:
        with self.dropout.at(step, n), self.segments.keeping_inputs() as model:
            share = loss(model, microbatch)
        self.weights.load(self.method.recompute(step, n))
        with self.dropout.at(step, n), self.segments.recomputing() as model:
            recomputed = loss(model, microbatch)
        self.weights.load(self.method.backward(step, n), BACKWARD)
        self.segments.backward(recomputed)
        return share


def choose(execution: Execution, pipeline: Pipeline, flat: FlatWeights, draws: bool) -> type[Copying]:
    """The way that `execution` asks for, or the cheapest that can be had.

    `draws`: a dropout of the model draws masks. Raises UserError where what was asked for cannot be had.
    """
    recomputing, on_gpu = pipeline.segment is not None, flat.weights.device.type == "cuda"
    if recomputing and execution.precision == "bf16":
        raise UserError("precision=bf16 with pipeline.recompute: pieces are run by themselves, in fp32 only")
    reason = None
    if recomputing:
        reason = "recomputation runs each microbatch in segments, which are not captured"
    elif draws:
        reason = "the model has dropout, whose masks are keyed by reseeding at each call, and a graph has one seed"
    if execution.graphs == "on" and reason is not None:
        raise UserError(f"engine.graphs=on: {reason}; set engine.graphs=auto or off")
    if recomputing:
        return Recomputing
    if reason is None and (execution.graphs == "on" or (execution.graphs == "auto" and on_gpu)):
        return Captured
    wanted = execution.beside
    if wanted is None:
        wanted = not on_gpu and flat.weights.nbytes >= WORTHWHILE
    # What stands beside the live weights is fp32, on the device, and of whole stages.
    possible = execution.precision != "bf16" and execution.history == "device" and pipeline.split == 1
    return Beside if wanted and possible else Copying
