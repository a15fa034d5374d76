"""One stage on a rank: its forward, recomputation, backward and update, and what it saves.

It keeps one set of live weights, which are at version t when t updates are done; a forward reads what is current at its
moment, by the schedule the very version that the method prescribes. Only where a pass reads something else (PipeDream's
stash, T2's estimate) past or current versions are kept beside the live ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from pipemare_exp.pipeline.dropout import KeyedDropout
from pipemare_exp.pipeline.history import FlatWeights
from pipemare_exp.pipeline.method import Method
from pipemare_exp.pipeline.reads import Read
from pipemare_exp.pipeline.recompute import StandIn, frozen_statistics, run_pieces
from pipemare_exp.pipeline.stage_weights import Clip, MakeOptimizer, StageWeights
from pipemare_exp.pipeline.stages import Piece, State, Unit

Loss = Callable[[nn.Module, Any], Tensor]
Sent = tuple[State | None, tuple[bool, ...]]
"""The tensors that go to the next stage (None for an empty microbatch), and which of them want a gradient."""


class _EndOfStage(BaseException):
    """Leaves the loss function where the first stage ends; not an error, so nothing may catch it as one."""


@dataclass
class Graph:
    """A microbatch between the pass that made its graph and its backward."""

    inputs: State | None
    outputs: State
    read: Read
    recomputed: bool = False


@dataclass
class Saving:
    """What is gathered for a checkpoint at version `version`, ahead of it: copies of the weights that the graphs then
    in flight were made with, and the outputs that will be under way to the next stage."""

    version: int
    weights: dict[Read, Tensor] = field(default_factory=dict)
    under_way: list[dict[str, Any]] = field(default_factory=list)


class Stage:
    """Stage `index` of `stages`, made of the pieces `parts` with the weight units `units` of `model`.

    `method` is an object of its own for this stage. `segment`: S with recomputation. `loss` is the task's, as the
    emulator takes it: the last stage calls it with its own output standing in for the model's.
    """

    def __init__(
        self,
        model: nn.Module,
        parts: Sequence[Piece],
        units: Sequence[Unit],
        index: int,
        stages: int,
        method: Method,
        optimizer: MakeOptimizer,
        microbatches: int,
        slots: str,
        dropout: KeyedDropout,
        loss: Loss,
        *,
        segment: int | None = None,
        clip: Clip = None,
    ) -> None:
        self.model, self.parts, self.index, self.stages = model, list(parts), index, stages
        self.method, self.microbatches, self.segment = method, microbatches, segment
        self.dropout, self.loss = dropout, loss
        self.first, self.last = index == 0, index == stages - 1
        self.modules = list(dict.fromkeys(m for piece in parts for module in piece.modules for m in module.modules()))
        self.buffers = buffers_of(parts)
        self.flat = FlatWeights(model, [[name for unit in units for name in unit.parameters]])
        everywhere = [_nothing(self.flat.weights) for _ in range(stages)]
        everywhere[index] = self.flat.stages[0]
        method.bind(stages, microbatches, slots, [flat.detach() for flat in everywhere], segment)
        # A recomputation happens here at its own moment: the ring of estimates by which the emulator looks back at
        # such moments is not needed.
        method.rings.clear()
        self.weights = StageWeights(everywhere, method, optimizer, clip, depths(method, index))
        self.most_held = 0
        """The most microbatches whose activations, or input for a recomputation, were held at once."""
        self.graphs: dict[int, Graph] = {}
        self.kept: dict[int, State] = {}
        """Inputs of microbatches whose activations are yet to be recomputed (first stage of a segment)."""
        self.statistics: dict[int, list[Tensor]] = {}
        """By version t: the buffers after the forward of the last microbatch before it."""
        self.losses: dict[int, Tensor] = {}
        self.savings: dict[int, Saving] = {}
        """By version: the checkpoints that are being gathered."""

    @property
    def version(self) -> int:
        return self.weights.history.current

    @property
    def flat_weights(self) -> Tensor:
        """A copy of the current version, its parameters flattened in unit order."""
        self.weights.load_current()
        return self.flat.compact()[0]

    def forward(self, g: int, state: State | None, microbatch: Any, recompute_later: bool, snapshot: bool) -> Sent:
        """The forward of microbatch `g`; `state` is what the stage before sent (None at the first stage).

        `microbatch` is needed at the first and the last stage. `snapshot`: keep the buffers as they are afterwards.
        """
        step, n = divmod(g, self.microbatches)
        read = self.method.forward(step, n)[self.index]
        self._load(read)
        with self.dropout.at(step, n):
            if recompute_later:
                with torch.no_grad():
                    outputs = self._run(state, microbatch)
                if state is not None and self.index % (self.segment or 1) == 0:
                    self.kept[g] = state
            else:
                outputs = self._run(state, microbatch)
                self.graphs[g] = Graph(state, outputs, read)
                self._copy_weights(g, read)
        self._count_held()
        if self.last:
            self.losses[step] = self.losses.get(step, torch.zeros_like(outputs[0])) + outputs[0].detach()
        if snapshot:
            self.keep_statistics(step + 1)
        sent = _sent(outputs)
        self._note_under_way("forward", g, self.method.forward(step, n), sent)
        return sent

    def pass_empty(self, g: int, snapshot: bool) -> None:
        """The forward of an empty microbatch: it only takes its turn."""
        step, n = divmod(g, self.microbatches)
        if snapshot:
            self.keep_statistics(step + 1)
        self._note_under_way("forward", g, self.method.forward(step, n), (None, ()))

    def keep_statistics(self, version: int) -> None:
        self.statistics[version] = [buffer.clone() for buffer in self.buffers]

    def recompute(self, g: int, state: State | None, microbatch: Any) -> Sent:
        """Run `g` forward again with the weights of this moment, now with a graph; leaves no trace in statistics."""
        step, n = divmod(g, self.microbatches)
        read = self.method.while_current(self.index, self.method.recompute(step, n)[self.index])
        self._load(read)
        if state is None and not self.first:
            state = leaves(self.kept.pop(g), None)
        outputs = self._again(g, state, microbatch)
        self.graphs[g] = Graph(state, outputs, read, recomputed=True)
        self._count_held()
        self._copy_weights(g, read)
        sent = _sent(outputs)
        self._note_under_way("recompute", g, self.method.recompute(step, n), sent)
        return sent

    def _count_held(self) -> None:
        self.most_held = max(self.most_held, len(self.graphs) + len(self.kept))

    def _again(self, g: int, state: State | None, microbatch: Any) -> State:
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
        graph = self.graphs.pop(g)
        self._load(self.method.backward(step, n)[self.index])
        if gradients is None:
            torch.autograd.backward(graph.outputs)
        else:
            roots = [
                (output, gradient)
                for output, gradient in zip(graph.outputs, gradients, strict=True)
                if output.requires_grad and gradient is not None
            ]
            torch.autograd.backward([output for output, _ in roots], [gradient for _, gradient in roots])
        return tuple(tensor.grad for tensor in graph.inputs or ())

    def update(self, step: int, rate: float) -> None:
        """The update of `step`; gradients start from zero again."""
        self.flat.check()
        self.weights.update(step, rate)
        self.flat.gradients.zero_()

    def _load(self, read: Read) -> None:
        reads = [read] * self.stages  # of the others there is nothing to load
        self.weights.load(reads)

    # Saving

    def save_at(self, version: int) -> None:
        """Gather from now on what a checkpoint at `version` needs. No later microbatch may have been forwarded yet."""
        self.savings.setdefault(version, Saving(version))

    def _gathering(self, g: int) -> list[Saving]:
        """The checkpoints at whose version microbatch `g` will be in flight."""
        return [saving for saving in self.savings.values() if g >= saving.version * self.microbatches]

    def _copy_weights(self, g: int, read: Read) -> None:
        for saving in self._gathering(g):
            if read not in saving.weights:
                saving.weights[read] = self.weights.history.live[self.index].clone()

    def _note_under_way(self, kind: str, g: int, reads: Sequence[Read], sent: Sent) -> None:
        """Keep an output that the next stage will not have used when it reaches the checkpoint's version."""
        for saving in [] if self.last else self._gathering(g):
            if reads[self.index + 1].version >= saving.version:
                tensors = None if sent[0] is None else [tensor.detach().clone() for tensor in sent[0]]
                saving.under_way.append({"kind": kind, "index": g, "tensors": tensors, "grads": list(sent[1])})

    def state_dict(self) -> dict[str, Any]:
        """All that goes on from here bit for bit, at a version that `save_at` named. Not copied."""
        saving = self.savings.pop(self.version)
        reads = list(saving.weights)
        graphs = [
            {
                "index": g,
                "inputs": None if graph.inputs is None else [tensor.detach() for tensor in graph.inputs],
                "grads": [] if graph.inputs is None else [tensor.requires_grad for tensor in graph.inputs],
                "weights": reads.index(graph.read),
                "recomputed": graph.recomputed,
            }
            for g, graph in sorted(self.graphs.items())
        ]
        return {
            "version": self.version,
            "weights": self.weights.state_dict(),
            "buffers": list(self.buffers),
            "graphs": graphs,
            "graph_weights": [saving.weights[read] for read in reads],
            "graph_reads": [list(read) for read in reads],
            "kept": {g: list(state) for g, state in sorted(self.kept.items())},
            "under_way": saving.under_way,
            "losses": dict(self.losses),
            "statistics": dict(self.statistics),
        }

    def load_state_dict(self, state: dict[str, Any], microbatch: Callable[[int], Any]) -> list[dict[str, Any]]:
        """Go on where `state_dict` was taken: the microbatches in flight are run forward again, with the weights that
        they had read. Returns the outputs that are to be sent to the next stage again."""
        self.weights.load_state_dict(state["weights"])
        live = self.weights.history.live[self.index]
        current = live.clone()
        device = live.device
        with torch.no_grad():
            for buffer, saved in zip(self.buffers, state["buffers"], strict=True):
                buffer.copy_(saved)
        for saved in state["graphs"]:
            with torch.no_grad():
                live.copy_(state["graph_weights"][saved["weights"]])
            inputs = saved["inputs"]
            if inputs is not None:
                inputs = leaves([tensor.to(device) for tensor in inputs], saved["grads"])
            g = saved["index"]
            wanted = microbatch(g) if self.first or self.last else None
            read = Read(*state["graph_reads"][saved["weights"]])
            self.graphs[g] = Graph(inputs, self._again(g, inputs, wanted), read, saved["recomputed"])
        with torch.no_grad():
            live.copy_(current)
        self.kept = {g: tuple(t.to(device) for t in kept) for g, kept in state["kept"].items()}
        self.losses = {step: total.to(device) for step, total in state["losses"].items()}
        self.statistics = {version: list(kept) for version, kept in state["statistics"].items()}
        return state["under_way"]

    def memory(self) -> dict[str, int]:
        """Bytes: live weights, gradients, past versions beside them, the method's buffers (T2: delta)."""
        held = self.weights.memory()
        return {
            "weights": self.flat.weights.nbytes,
            "gradients": self.flat.gradients.nbytes,
            "history": held["history"],
            "buffers": held["buffers"],
        }


def buffers_of(parts: Sequence[Piece]) -> list[Tensor]:
    """The buffers (BatchNorm's statistics) of the modules whose weights these pieces own, in one order everywhere."""
    found = (buffer for piece in parts for module in piece.modules for buffer in module.buffers())
    return list({id(buffer): buffer for buffer in found}.values())


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


def _sent(outputs: State) -> Sent:
    return outputs, tuple(tensor.requires_grad for tensor in outputs)


def _nothing(like: Tensor) -> nn.Parameter:
    """The weights of a stage that lives elsewhere: none."""
    empty = nn.Parameter(like.new_empty(0))
    empty.grad = like.new_empty(0)
    return empty


def depths(method: Method, stage: int) -> list[int | None]:
    """How many past versions `stage` has to keep in a real pipeline, where a forward reads what is current.

    None where nothing but the live weights is needed; 0 where a copy of the current version is, because a backward
    overwrites the live ones (T2) or the method wants w_{t+1} - w_t.
    """
    found: int | None = 0 if method.tracks()[stage] else None
    step = getattr(method, "warmup_steps", 0) + max(method.delays, default=0) + 1
    for n in range(method.microbatches):
        read = method.backward(step, n)[stage]
        if read.buffer is not None or read.version != step:
            found = max(found or 0, step - read.version)
    every: list[int | None] = [None] * method.stages
    every[stage] = found
    return every
