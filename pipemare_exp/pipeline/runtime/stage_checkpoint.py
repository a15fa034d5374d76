"""A stage's part of a checkpoint made in full flight: gathered ahead of it, written down, and taken up again.

At version t some microbatches have been run forward and not backward, and some outputs are on their way to the next
stage. Both are saved as what they were made from, and made again bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pipemare_exp.pipeline.runtime.boundary import Graph, Sent, leaves
from pipemare_exp.pipeline.weights.reads import Read

if TYPE_CHECKING:
    from pipemare_exp.pipeline.runtime.stage import Stage


@dataclass
class Saving:
    """What is gathered for a checkpoint at version `version`, ahead of it: copies of the weights that the graphs then
    in flight were made with, and the outputs that will be under way to the next stage."""

    version: int
    weights: dict[Read, Tensor] = field(default_factory=dict)
    under_way: list[dict[str, Any]] = field(default_factory=list)


class Gathering:
    """The checkpoints that a stage gathers for, by version; `stage` is its index."""

    def __init__(self, stage: int, stages: int, microbatches: int) -> None:
        self.next = stage + 1 if stage < stages - 1 else None
        self.microbatches = microbatches
        self._savings: dict[int, Saving] = {}

    def begin(self, version: int) -> None:
        """Gather from now on what a checkpoint at `version` needs. No later microbatch may have been forwarded yet."""
        self._savings.setdefault(version, Saving(version))

    def __contains__(self, version: int) -> bool:
        return version in self._savings

    def pop(self, version: int) -> Saving:
        return self._savings.pop(version)

    def _for(self, g: int) -> list[Saving]:
        """The checkpoints at whose version microbatch `g` will be in flight."""
        return [saving for saving in self._savings.values() if g >= saving.version * self.microbatches]

    def copy_weights(self, g: int, read: Read, live: Tensor) -> None:
        """Keep the `live` weights, at `read`, with which the graph of `g` was made."""
        for saving in self._for(g):
            if read not in saving.weights:
                saving.weights[read] = live.clone()

    def note_under_way(self, kind: str, g: int, reads: Sequence[Read], sent: Sent) -> None:
        """Keep an output that the next stage will not have used when it reaches the checkpoint's version. `reads`: what
        every stage reads in this pass of `g`."""
        if self.next is None:
            return
        for saving in self._for(g):
            if reads[self.next].version >= saving.version:
                tensors = None if sent[0] is None else [tensor.detach().clone() for tensor in sent[0]]
                saving.under_way.append({"kind": kind, "index": g, "tensors": tensors, "grads": list(sent[1])})


def state_of(stage: Stage) -> dict[str, Any]:
    """All that goes on from here bit for bit, at a version for which it was gathered. Not copied."""
    saving = stage.gathering.pop(stage.version)
    reads = list(saving.weights)
    graphs = [
        {
            "index": g,
            "inputs": None if graph.inputs is None else [tensor.detach() for tensor in graph.inputs],
            "grads": [] if graph.inputs is None else [tensor.requires_grad for tensor in graph.inputs],
            "weights": reads.index(graph.read),
            "recomputed": graph.recomputed,
        }
        for g, graph in sorted(stage.graphs.items())
    ]
    return {
        "version": stage.version,
        "weights": stage.weights.state_dict(),
        "buffers": list(stage.buffers),
        "graphs": graphs,
        "graph_weights": [saving.weights[read] for read in reads],
        "graph_reads": [list(read) for read in reads],
        "kept": {g: list(state) for g, state in sorted(stage.kept.items())},
        "under_way": saving.under_way,
        "losses": dict(stage.losses),
        "statistics": dict(stage.statistics),
    }


def restore(stage: Stage, state: dict[str, Any], microbatch: Callable[[int], Any]) -> list[dict[str, Any]]:
    """Go on where `state_of` was taken: the microbatches in flight are run forward again, with the weights that they
    had read. Returns the outputs that are to be sent to the next stage again."""
    stage.weights.load_state_dict(state["weights"])
    live = stage.weights.history.live[stage.index]
    current = live.clone()
    device = live.device
    with torch.no_grad():
        for buffer, saved in zip(stage.buffers, state["buffers"], strict=True):
            buffer.copy_(saved)
    for saved in state["graphs"]:
        with torch.no_grad():
            live.copy_(state["graph_weights"][saved["weights"]])
        inputs = saved["inputs"]
        if inputs is not None:
            inputs = leaves([tensor.to(device) for tensor in inputs], saved["grads"])
        g = saved["index"]
        wanted = microbatch(g) if stage.first or stage.last else None
        read = Read(*state["graph_reads"][saved["weights"]])
        stage.graphs[g] = Graph(inputs, stage.again(g, inputs, wanted), read, saved["recomputed"])
    with torch.no_grad():
        live.copy_(current)
    stage.kept = {g: tuple(t.to(device) for t in kept) for g, kept in state["kept"].items()}
    stage.losses = {step: total.to(device) for step, total in state["losses"].items()}
    stage.statistics = {version: list(kept) for version, kept in state["statistics"].items()}
    return state["under_way"]


def copied(tree: Any) -> Any:
    """A copy of nested dicts and lists whose tensors are copies too, on the CPU."""
    if isinstance(tree, Tensor):
        return tree.detach().to("cpu", copy=True)
    if isinstance(tree, dict):
        return {key: copied(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [copied(value) for value in tree]
    return tree
