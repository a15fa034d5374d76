"""What asynchronous methods keep beside the weights, per rank: measured, and by costs.py."""

from __future__ import annotations

from typing import Any

from pipemare_exp import methods
from pipemare_exp.bench.runtime import run_ranks
from pipemare_exp.bench.runtime_compute import spec_of
from pipemare_exp.models import unit_sizes
from pipemare_exp.pipeline.model.units import choose_boundaries
from pipemare_exp.pipeline.schedule.versions import history_depth, mean_delays, slot_delays

BYTES = 4
"""Of a weight."""

METHODS = ("gpipe", "pipedream", "pipemare", "pipemare-t2")


def memory(model: str, ranks: int, counts: list[int]) -> list[dict[str, Any]]:
    """Bytes on each of `ranks` ranks of one stage, after enough steps to have filled every buffer; one row per N,
    method and rank.

    `history`: past versions and copies of the current one; `delta`: T2's buffer. `resident_over_gpipe`: how much more
    of the process is in memory than with GPipe, which keeps neither, in the same number of steps; processes are new for
    every method. By the model: `stash_mean_model`, tau of the stage times its weights, the paper's average over time;
    `history_model`, whole versions, ceil(tau) past ones and the current, or T2's copy; `delta_model`, the weights.
    """
    sizes = unit_sizes(model)
    first = choose_boundaries(sizes, ranks)
    ends = [*first[1:], len(sizes)]
    weights = [BYTES * sum(sizes[begin:end]) for begin, end in zip(first, ends, strict=True)]
    rows: list[dict[str, Any]] = []
    for count in counts:
        steps = 2 * history_depth(max(slot_delays(ranks)), count) + 2
        tau, delays = mean_delays(ranks, count), slot_delays(ranks)
        resident: list[float] = []
        for method in METHODS:
            # One image a microbatch: activations should not drown what is looked for.
            (found,) = run_ranks([spec_of(model, method, 2 * count, count, first, steps)], ranks, 600.0)
            resident = resident or found["resident"]
            for rank, held in enumerate(found["memory"]):
                stashes, corrects = method == "pipedream", method == "pipemare-t2"
                versions = history_depth(delays[rank], count) + 1 if stashes else int(corrects)
                rows.append(
                    {
                        "model": model,
                        "microbatches": count,
                        "method": method,
                        "rank": rank,
                        "weights": held["weights"],
                        "history": held["history"],
                        "delta": held["buffers"],
                        "resident_over_gpipe": found["resident"][rank] - resident[rank],
                        "history_model": versions * weights[rank],
                        "stash_mean_model": tau[rank] * weights[rank] if stashes else 0.0,
                        "delta_model": weights[rank] if corrects else 0,
                    }
                )
    return rows


def totals(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of each N and method added up, in W (all weights), with costs.py's own numbers for stages of the sizes
    that the rows have."""
    found = []
    for count in dict.fromkeys(row["microbatches"] for row in rows):
        for method in METHODS[1:]:
            part = [row for row in rows if (row["microbatches"], row["method"]) == (count, method)]
            every = sum(row["weights"] for row in part)
            known = {"pipedream": "pipedream", "pipemare": "pipemare_no_t2"}.get(method, "pipemare")
            sizes = [row["weights"] for row in part]
            model = methods.costs()[known].memory(len(part), count, sizes=sizes)
            found.append(
                {
                    "microbatches": count,
                    "method": method,
                    "history": sum(row["history"] for row in part) / every,
                    "delta": sum(row["delta"] for row in part) / every,
                    "resident_over_gpipe": sum(row["resident_over_gpipe"] for row in part) / every,
                    "stash_model": model.stash_model,
                    "delta_model": model.buffers,
                }
            )
    return found
