"""A stage's part of a checkpoint that is made without draining the pipeline: its state, and how to go on from it.

A microbatch in flight is saved as what its graph was made from, its inputs and weights (see gathering.py), and is run
forward again, bit for bit, to go on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pipemare_exp.pipeline.runtime.boundary import InFlight, leaves
from pipemare_exp.pipeline.runtime.stage import Stage
from pipemare_exp.pipeline.weights.reads import Read


def state_of(stage: Stage) -> dict[str, Any]:
    """All that training needs to go on bit for bit from the stage's version, for which `gathering` was begun. Not
    copied."""
    saving = stage.gathering.pop(stage.version)
    reads = list(saving.weights)
    in_flight = [
        {
            "index": g,
            "inputs": None if run.inputs is None else [tensor.detach() for tensor in run.inputs],
            "grads": [] if run.inputs is None else [tensor.requires_grad for tensor in run.inputs],
            "weights": reads.index(run.read),
            "recomputed": run.recomputed,
        }
        for g, run in sorted(stage.in_flight.items())
    ]
    return {
        "version": stage.version,
        "weights": stage.weights.state_dict(),
        "buffers": list(stage.buffers),
        "in_flight": in_flight,
        "in_flight_weights": [saving.weights[read] for read in reads],
        "in_flight_reads": [list(read) for read in reads],
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
    for saved in state["in_flight"]:
        with torch.no_grad():
            live.copy_(state["in_flight_weights"][saved["weights"]])
        inputs = saved["inputs"]
        if inputs is not None:
            inputs = leaves([tensor.to(device) for tensor in inputs], saved["grads"])
        g = saved["index"]
        wanted = microbatch(g) if stage.first or stage.last else None
        read = Read(*state["in_flight_reads"][saved["weights"]])
        stage.in_flight[g] = InFlight(inputs, stage.rerun(g, inputs, wanted), read, saved["recomputed"])
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
