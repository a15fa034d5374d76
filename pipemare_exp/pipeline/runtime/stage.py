"""One stage on a rank: its forward, recomputation, backward and update, and what it saves.

It keeps one set of live weights, which are at version t when t updates are done; a forward reads what is current at its
moment, by the schedule the very version that the method prescribes. Only where a pass reads something else (PipeDream's
stash, T2's estimate) past or current versions are kept beside the live ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pipemare_exp.pipeline.method import Method
from pipemare_exp.pipeline.model.dropout import KeyedDropout
from pipemare_exp.pipeline.model.recompute import StandIn, frozen_statistics, run_pieces
from pipemare_exp.pipeline.model.units import Piece, State
from pipemare_exp.pipeline.runtime.boundary import InFlight, Sent, leaves, sent_of
from pipemare_exp.pipeline.runtime.gathering import Gathering
from pipemare_exp.pipeline.runtime.training import Training
from pipemare_exp.pipeline.schedule.versions import forward_version
from pipemare_exp.pipeline.shape import Pipeline
from pipemare_exp.pipeline.stage_weights import StageWeights
from pipemare_exp.pipeline.weights.flat import FlatWeights
from pipemare_exp.pipeline.weights.history import DeviceHistory
from pipemare_exp.pipeline.weights.reads import Read


class _EndOfStage(BaseException):
    """Leaves the loss function where the first stage ends; not an error, so nothing may catch it as one."""


class Stage:
    """Stage `index` of `pipeline`, which is made of the pieces `parts` of `model`.

    It has a method object and an optimizer of its own, as `training` makes them. The last stage calls the loss with its
    own output standing in for the model's.
    """

    def __init__(
        self,
        model: nn.Module,
        pipeline: Pipeline,
        index: int,
        parts: Sequence[Piece],
        training: Training,
        dropout: KeyedDropout,
    ) -> None:
        self.model, self.parts, self.index = model, list(parts), index
        self.stages, self.microbatches, self.segment = pipeline.stages, pipeline.microbatches, pipeline.segment
        self.dropout, self.loss = dropout, training.loss
        self.first, self.last = index == 0, index == self.stages - 1
        self.modules = list(dict.fromkeys(m for piece in parts for module in piece.modules for m in module.modules()))
        self.buffers = buffers_of(parts)
        mine = pipeline.stage_parameters[index]
        self.flat = FlatWeights(
            model, [mine if s == index else [] for s in range(self.stages)]
        )  # others live elsewhere
        self.method = training.make_method()
        self.method.bind(pipeline.shape, [flat.detach() for flat in self.flat.stages], looks_back=False)
        history = DeviceHistory(self.flat.stages, depths(self.method, index))
        self.weights = StageWeights(self.flat, self.method, training.optimizer, history, training.clip)
        self.most_held = 0
        """The most microbatches whose activations, or input for a recomputation, were held at once."""
        self.in_flight: dict[int, InFlight] = {}
        self.kept: dict[int, State] = {}
        """Inputs of microbatches whose activations are yet to be recomputed (first stage of a segment)."""
        self.statistics: dict[int, list[Tensor]] = {}
        """By version t: the buffers after the forward of the last microbatch before it."""
        self.losses: dict[int, Tensor] = {}
        self.gathering = Gathering(index, self.stages, self.microbatches)
        """The checkpoints that are to come."""

    @property
    def version(self) -> int:
        return self.weights.history.current

    @property
    def flat_weights(self) -> Tensor:
        """A copy of the current version, its parameters flattened in unit order."""
        self.weights.load_current()
        return self.flat.compact()[self.index]

    def forward(self, g: int, state: State | None, microbatch: Any, recompute_later: bool, snapshot: bool) -> Sent:
        """The forward of microbatch `g`; `state` is what the stage before sent (None at the first stage).

        `microbatch` is needed at the first and the last stage. `snapshot`: keep the buffers as they are afterwards.
        """
        step, n = divmod(g, self.microbatches)
        read = self._now(self.method.forward(step, n)[self.index])
        self._load(read)
        with self.dropout.at(step, n):
            if recompute_later:
                with torch.no_grad():
                    outputs = self._run(state, microbatch)
                if state is not None and self.index % (self.segment or 1) == 0:
                    self.kept[g] = state
            else:
                outputs = self._run(state, microbatch)
                self.in_flight[g] = InFlight(state, outputs, read)
                self.gathering.copy_weights(g, read, self.weights.history.live[self.index])
        self._count_held()
        if self.last:
            self.losses[step] = self.losses.get(step, torch.zeros_like(outputs[0])) + outputs[0].detach()
        if snapshot:
            self.keep_statistics(step + 1)
        sent = sent_of(outputs)
        self.gathering.note_under_way("forward", g, self._versions(g, self.method.delays), sent)
        return sent

    def pass_empty(self, g: int, snapshot: bool) -> None:
        """The forward of an empty microbatch: it only takes its turn."""
        if snapshot:
            self.keep_statistics(g // self.microbatches + 1)
        self.gathering.note_under_way("forward", g, self._versions(g, self.method.delays), (None, ()))

    def keep_statistics(self, version: int) -> None:
        self.statistics[version] = [buffer.clone() for buffer in self.buffers]

    def recompute(self, g: int, state: State | None, microbatch: Any) -> Sent:
        """Run `g` forward again with the weights of this moment, now with a graph; leaves no trace in statistics."""
        step, n = divmod(g, self.microbatches)
        read = self._now(self.method.recompute(step, n)[self.index])
        self._load(read)
        if state is None and not self.first:
            state = leaves(self.kept.pop(g), None)
        outputs = self.rerun(g, state, microbatch)
        self.in_flight[g] = InFlight(state, outputs, read, recomputed=True)
        self._count_held()
        self.gathering.copy_weights(g, read, self.weights.history.live[self.index])
        sent = sent_of(outputs)
        self.gathering.note_under_way("recompute", g, self._versions(g, self.method.recompute_delays), sent)
        return sent

    def _count_held(self) -> None:
        self.most_held = max(self.most_held, len(self.in_flight) + len(self.kept))

    def rerun(self, g: int, state: State | None, microbatch: Any) -> State:
        """A later forward of `g` with the live weights: the same dropout masks, statistics left alone."""
        with self.dropout.at(*divmod(g, self.microbatches)), frozen_statistics(self.modules):
            return self._run(state, microbatch)

    def _run(self, state: State | None, microbatch: Any) -> State:
        """The stage's pieces; at the last stage, the loss."""
        if not self.first and not self.last:
            assert state is not None
            return run_pieces(self.parts, state)
        reached: list[State] = []

        def run(*inputs: Tensor) -> Tensor:
            outputs = run_pieces(self.parts, inputs if state is None else state)
            if not self.last:
                reached.append(outputs)
                raise _EndOfStage
            return outputs[0]

        try:
            return (self.loss(StandIn(self.model, run), microbatch),)  # type: ignore[arg-type]
        except _EndOfStage:
            return reached[0]

    def backward(self, g: int, gradients: Sequence[Tensor | None] | None) -> tuple[Tensor | None, ...]:
        """The backward of `g` with the gradients that came back (None at the last stage); returns those of its inputs.

        A gradient that comes back for a tensor which was handed on unchanged is a root of the same backward, so that
        sums are formed in the order in which one backward through the whole model forms them.
        """
        step, n = divmod(g, self.microbatches)
        run = self.in_flight.pop(g)
        self._load(self.method.backward(step, n)[self.index])
        if gradients is None:
            torch.autograd.backward(run.outputs)
        else:
            roots = [
                (output, gradient)
                for output, gradient in zip(run.outputs, gradients, strict=True)
                if output.requires_grad and gradient is not None
            ]
            torch.autograd.backward([output for output, _ in roots], [gradient for _, gradient in roots])
        self.weights.collect(step, n)
        return tuple(tensor.grad for tensor in run.inputs or ())

    def update(self, step: int, rate: float, observed: bool = False) -> None:
        """The update of `step`; gradients start from zero again. `observed`: note their norm before it."""
        self.flat.check()
        self.weights.update(step, rate, observed)
        self.flat.gradients.zero_()

    def health(self, step: int, counted: bool) -> Tensor:
        """Of `step`, whose update was observed, as four numbers: the norm of its gradient, its longest delay in steps,
        and how many numbers of the optimizer's state and of the method's buffers are not finite (-1: not
        `counted`)."""
        assert self.weights.grad_norms is not None
        reads = (self.method.forward(step, n)[self.index] for n in range(self.microbatches))
        delay = max(step - read.version for read in reads)
        found = self.weights.non_finite() if counted else {"optimizer": -1, "method": -1}
        numbers = [float(self.weights.grad_norms[0]), delay, found["optimizer"], found["method"]]
        return torch.tensor(numbers, dtype=torch.float64)

    def _versions(self, g: int, delays: Sequence[int]) -> list[int]:
        """The current version of every stage at a pass of `g`, in which it is `delays` late."""
        if self.method.synchronous:
            return [g // self.microbatches] * self.stages
        start = self.method.warmup_steps
        return [forward_version(g, delay, self.microbatches, start) for delay in delays]

    def _now(self, read: Read) -> Read:
        """`read`, as what it is made from where its version is the current one."""
        return self.method.while_current(self.index, read) if read.version == self.version else read

    def _load(self, read: Read) -> None:
        self.weights.load([read] * self.stages)  # of the other stages there is nothing to load

    def memory(self) -> dict[str, int]:
        """Bytes: live weights, gradients, past versions beside them, the method's buffers (T2: delta)."""
        held = self.weights.memory()
        return {
            "weights": self.flat.weights.nbytes,
            "gradients": sum(tensor.nbytes for tensor in [self.flat.gradients, *self.weights.sums]),
            "history": held["history"],
            "buffers": held["buffers"],
        }


def buffers_of(parts: Sequence[Piece]) -> list[Tensor]:
    """The buffers (BatchNorm's statistics) of the modules whose weights these pieces own, in one order everywhere."""
    found = (buffer for piece in parts for module in piece.modules for buffer in module.buffers())
    return list({id(buffer): buffer for buffer in found}.values())


def depths(method: Method, stage: int) -> list[int | None]:
    """How many past versions `stage` has to keep in a real pipeline, where a forward reads what is current.

    None where nothing but the live weights is needed; 0 where a copy of the current version is, because a pass
    overwrites the live ones (with T2's estimate, a prediction) or the method wants w_{t+1} - w_t.
    """
    found: int | None = 0 if method.tracks()[stage] else None
    step = method.warmup_steps + max(method.delays, default=0) + 1
    for n in range(method.microbatches):
        forward = method.while_current(stage, method.forward(step, n)[stage])
        backward = method.backward(step, n)[stage]
        if forward.buffer is not None or backward.buffer is not None or backward.ring is not None:
            found = max(found or 0, 0)
        if backward.ring is None and backward.version != step:
            found = max(found or 0, step - backward.version)
    every: list[int | None] = [None] * method.stages
    every[stage] = found
    return every
