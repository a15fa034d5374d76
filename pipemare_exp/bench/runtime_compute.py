"""Steps a second of real computation: every method of ours, and torch.distributed.pipelining's schedules."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import torch

from pipemare_exp import methods, models
from pipemare_exp.bench.runtime import run_ranks
from pipemare_exp.pipeline.model.units import pieces
from pipemare_exp.pipeline.runtime.measure import balanced_pieces, piece_seconds
from pipemare_exp.pipeline.schedule import costs

METHODS = ("gpipe", "1f1b", "pipedream", "pipemare", "torch-gpipe", "torch-1f1b")
TORCH = ("torch-gpipe", "torch-1f1b")
SYNCHRONOUS = ("gpipe", "1f1b", *TORCH)

TRIES = 3
"""Cuts that are tried out on the ranks themselves."""


def compute(model: str, batch: int, counts: list[int], rounds: int, steps: int, ranks: int = 2) -> list[dict[str, Any]]:
    """Steps a second of every method on `ranks` ranks, one thread each; methods in turn, `rounds` times, each of them
    on the same cut, microbatches and numbers.

    A row's `over_M` are the medians over the rounds of its rate over that of M in the same round, with the extremes.
    """
    rows = []
    for count in counts:
        # torch's 1F1B wants at least as many microbatches as stages.
        compared = [method for method in METHODS if method != "torch-1f1b" or count >= ranks]
        first, busy = balanced(model, batch, count, steps, ranks)
        turn = [spec_of(model, method, batch, count, first, steps) for method in compared]
        found = run_ranks(turn * rounds, ranks, 900.0)
        rates = {method: [row["steps_per_second"] for row in found if row["method"] == method] for method in compared}
        for method in compared:
            measured = [row["utilization"] for row in found if row["method"] == method and "utilization" in row]
            row = {
                "model": model,
                "method": method,
                "ranks": ranks,
                "microbatches": count,
                "batch": batch,
                "steps_per_second": statistics.median(rates[method]),
                "utilization": statistics.median(measured) if measured else None,
                "utilization_model": methods.costs()[_known(method)].utilization(ranks, count),
                "over_gpipe_model": 1.0 if method in SYNCHRONOUS else costs.gpipe_ratio(ranks, count),
                "busy_shares": [value / sum(busy) for value in busy],
            }
            for base in ("gpipe", *(name for name in TORCH if name in compared)):
                against = [mine / other for mine, other in zip(rates[method], rates[base], strict=True)]
                name = f"over_{base.replace('-', '_')}"
                row |= {name: statistics.median(against), f"{name}_min": min(against), f"{name}_max": max(against)}
            rows.append(row)
    return rows


def _known(method: str) -> str:
    """The method's name in a plan, whose model counts 1F1B's time as GPipe's."""
    return "gpipe" if method in SYNCHRONOUS else method


def spec_of(model: str, method: str, batch: int, count: int, first: Sequence[int], steps: int) -> dict[str, Any]:
    """One measurement, as runtime_rank takes it; `first`: the first piece of each rank."""
    return {"model": model, "method": method, "batch": batch, "microbatches": count, "first_pieces": list(first),
            "steps": steps}  # fmt: skip


def balanced(model: str, batch: int, count: int, steps: int, ranks: int) -> tuple[list[int], list[float]]:
    """(the first piece of each rank, the seconds that each rank is busy in a step), with the busiest as little so as
    could be had.

    Pieces timed one by one propose a cut; ranks that run it say how long their parts take there, beside each other and
    with their messages; the pieces' times are scaled by that, and a better cut is looked for.
    """
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    net: Any = models.build(model).train()
    cut = pieces(net)
    images = torch.randn(max(1, batch // count), *(models.images(model) or ()))
    seconds = piece_seconds(net, cut, (images,))
    torch.set_num_threads(threads)
    tried: dict[tuple[int, ...], list[float]] = {}
    for _ in range(TRIES):
        first = balanced_pieces(seconds, ranks)
        if tuple(first) in tried:
            break
        (row,) = run_ranks([spec_of(model, "pipemare", batch, count, first, steps)], ranks, 900.0)
        busy = tried[tuple(first)] = row["busy_seconds"]
        for begin, end, measured in zip(first, [*first[1:], len(cut)], busy, strict=True):
            scale = measured / sum(seconds[begin:end])
            seconds[begin:end] = [value * scale for value in seconds[begin:end]]
    best = min(tried, key=lambda first: max(tried[first]))
    return list(best), tried[best]
