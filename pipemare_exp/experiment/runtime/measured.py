"""What a pipeline's run measured, in its folder: runtime.json (utilization, throughput, bytes) and trace.json."""

from __future__ import annotations

import json
import resource
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from pipemare_exp import methods
from pipemare_exp.experiment.config.schema import Config
from pipemare_exp.experiment.runs.writing import write_json, write_text
from pipemare_exp.pipeline.runtime.rank import Runtime
from pipemare_exp.pipeline.runtime.timeline import Event, Windows, aligned, busy, chrome_trace, utilization, windows
from pipemare_exp.pipeline.schedule.versions import history_depth, slot_delays

OPS = {"F": "forward", "B": "backward", "R": "recompute", "U": "update", "E": "evaluate"}


def report_of(runtime: Runtime) -> dict[str, Any]:
    """What one rank tells at its end; everything in it is plain JSON."""
    cuda = runtime.transport.device.type == "cuda"
    peak = torch.cuda.max_memory_allocated() if cuda else 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "timeline": runtime.timeline.export(),
        "stages": sorted(runtime.stages),
        "memory": runtime.memory(),
        "activations": {str(s): stage.most_held for s, stage in runtime.stages.items()},
        "bytes_sent": runtime.transport.bytes_sent,
        "peak_memory": peak,
    }


def write_reports(folder: Path, cfg: Config, reports: Sequence[dict[str, Any]]) -> None:
    """Write RUN/runtime.json and RUN/trace.json."""
    by_rank = aligned([report["timeline"] for report in reports])
    write_json(folder / "runtime.json", summary(cfg, by_rank, reports))
    trace = chrome_trace(by_rank)
    write_text(folder / "trace.json", json.dumps(trace), durable=False)


def summary(cfg: Config, by_rank: dict[int, list[Event]], reports: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The measured numbers, beside the model's utilization.

    `utilization`: time in forwards, backwards and recomputations over wall time, in the steady state, evaluations taken
    out; null where the run was too short to have one. A rank computes one thing at a time: 1 is the most.
    """
    pipeline = cfg.pipeline
    assert pipeline.stages is not None
    within = _steady(cfg, by_rank)
    shares: list[float | None] = [None] * len(by_rank)
    steps_per_second = seconds = None
    if within is not None:
        shares = list(utilization(by_rank, within).values())
        begin, end = within[0]
        seconds = end - begin - busy(by_rank[0], begin, end, ("E",))
        done = sum(e.op == "U" and e.stage == 0 and begin < e.end <= end for e in by_rank[0])
        steps_per_second = done / seconds
    known = [share for share in shares if share is not None]
    ranks = [
        {
            "rank": rank,
            "stages": report["stages"],
            "utilization": share,
            "seconds": {name: sum(e.end - e.begin for e in events if e.op == op) for op, name in OPS.items()},
            **{key: report[key] for key in ("bytes_sent", "peak_memory", "memory", "activations")},
        }
        for (rank, events), share, report in zip(by_rank.items(), shares, reports, strict=True)
    ]
    known_costs = methods.costs_of(cfg.method.label or "")
    assert known_costs is not None, "a method that ranks execute declares its costs"
    return {
        "method": cfg.method.label,
        "stages": pipeline.stages,
        "microbatches": pipeline.microbatches,
        "slots": pipeline.slots,
        "utilization": sum(known) / len(known) if known else None,
        # With several stages on a rank the pipeline is as long as there are ranks: a rank works for its stages in turn.
        "utilization_model": known_costs.utilization(len(by_rank), pipeline.microbatches),
        "steps_per_second": steps_per_second,
        "seconds": seconds,
        "ranks": ranks,
    }


def _steady(cfg: Config, by_rank: dict[int, list[Event]]) -> Windows | None:
    """The steady state: after the fill that follows the warm-up, before the drain; among the actions remembered."""
    pipeline = cfg.pipeline
    assert pipeline.stages is not None
    updates = [[e.step for e in events if e.op == "U"] for events in by_rank.values()]
    if not all(updates):
        return None
    deepest = 0 if cfg.method.kind.synchronous else max(slot_delays(pipeline.stages, pipeline.slots))
    depth = history_depth(deepest, pipeline.microbatches)
    first = max((cfg.method.sync_warmup.steps or 0) + depth + 1, *(min(found) + 1 for found in updates))
    last = min(max(found) for found in updates) - depth
    try:
        return windows(by_rank, first, last)
    except ValueError:
        return None
