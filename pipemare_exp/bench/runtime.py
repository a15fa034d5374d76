"""What real pipelines reach: schedule and messages alone, with stages that sleep, and real computation on two ranks."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from pipemare_exp import models
from pipemare_exp.errors import UserError
from pipemare_exp.pipeline import costs
from pipemare_exp.pipeline.measure import balanced_pieces, piece_seconds
from pipemare_exp.pipeline.stages import pieces

COMPUTE = ("gpipe", "1f1b", "pipedream", "pipemare", "torch-gpipe", "torch-1f1b")


def run_ranks(spec: list[dict[str, Any]], ranks: int, timeout: float) -> list[dict[str, Any]]:
    """Every measurement of `spec`, done by `ranks` new processes with one thread each."""
    with tempfile.TemporaryDirectory(prefix="pipemare-bench-") as name:
        folder = Path(name)
        (folder / "spec.json").write_text(json.dumps(spec))
        command = [sys.executable, "-m", "pipemare_exp.bench.runtime_rank"]
        rest = [str(ranks), str(folder / "store"), str(folder / "spec.json"), str(folder / "out.json")]
        started = [
            subprocess.Popen(
                [*command, str(rank), *rest], env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE, text=True,
            )
            for rank in range(ranks)
        ]  # fmt: skip
        try:
            said = [process.communicate(timeout=timeout)[1] for process in started]
        except subprocess.TimeoutExpired as error:
            raise UserError(f"the {ranks} ranks were not through after {timeout:g} s; is the machine busy?") from error
        finally:
            for process in started:
                process.kill()
                process.wait()
        if any(process.returncode for process in started):
            last = next(text for process, text in zip(started, said, strict=True) if process.returncode)
            raise RuntimeError(f"a rank failed: {last.strip().splitlines()[-1] if last.strip() else 'no message'}")
        return json.loads((folder / "out.json").read_text())


def latency(stages: int, counts: list[int], seconds: float) -> list[dict[str, Any]]:
    """Utilization of GPipe and PipeMare with `stages` ranks whose every operation takes `seconds`, for each N."""
    spec = [
        {"model": "sleep", "method": method, "stages": stages, "microbatches": count, "seconds": seconds,
         "first_pieces": list(range(stages)), "steps": max(3, 24 // count)}
        for count in counts
        for method in ("gpipe", "pipemare")
    ]  # fmt: skip
    rows = run_ranks(spec, stages, 600.0)
    for row in rows:
        row["utilization_model"] = costs.utilization(row["method"], stages, row["microbatches"])
        del row["first_pieces"]
    for sync, asynchronous in zip(rows[::2], rows[1::2], strict=True):
        asynchronous["over_gpipe"] = asynchronous["steps_per_second"] / sync["steps_per_second"]
        asynchronous["over_gpipe_model"] = costs.gpipe_ratio(stages, asynchronous["microbatches"])
    return rows


def compute(model: str, batch: int, counts: list[int], rounds: int, steps: int, ranks: int = 2) -> list[dict[str, Any]]:
    """Steps a second of every method on `ranks` ranks, one thread each; methods in turn, `rounds` times.

    The model is cut where its pieces, measured here, take equally long.
    """
    torch.manual_seed(0)
    net: Any = models.build(model).train()
    cut = pieces(net)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    rows = []
    for count in counts:
        images = torch.randn(max(1, batch // count), net.spec.channels, net.spec.size, net.spec.size)
        seconds = piece_seconds(net, cut, (images,))
        first = balanced_pieces(seconds, ranks)
        ends = [*first[1:], len(cut)]
        shares = [sum(seconds[a:b]) / sum(seconds) for a, b in zip(first, ends, strict=True)]
        # torch's 1F1B wants at least as many microbatches as stages.
        compared = [method for method in COMPUTE if method != "torch-1f1b" or count >= ranks]
        spec = [
            {"model": model, "method": method, "batch": batch, "microbatches": count, "first_pieces": first,
             "steps": steps}
            for _ in range(rounds)
            for method in compared
        ]  # fmt: skip
        found = run_ranks(spec, ranks, 900.0)
        rates = {method: [row["steps_per_second"] for row in found if row["method"] == method] for method in compared}
        for method in compared:
            against = [mine / base for mine, base in zip(rates[method], rates["gpipe"], strict=True)]
            measured = [row["utilization"] for row in found if row["method"] == method and "utilization" in row]
            known = {"1f1b": "gpipe"}.get(method, method.removeprefix("torch-").replace("1f1b", "gpipe"))
            rows.append(
                {
                    "model": model,
                    "method": method,
                    "ranks": ranks,
                    "microbatches": count,
                    "batch": batch,
                    "steps_per_second": statistics.median(rates[method]),
                    "over_gpipe": statistics.median(against),
                    "over_gpipe_min": min(against),
                    "over_gpipe_max": max(against),
                    "utilization": statistics.median(measured) if measured else None,
                    "utilization_model": costs.utilization(known, ranks, count),
                    "largest_share": max(shares),
                }
            )
    torch.set_num_threads(threads)
    return rows
