"""Ranks that are started to measure, and what schedule and messages alone reach, with stages that sleep."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from pipemare_exp import methods, tied
from pipemare_exp.errors import UserError
from pipemare_exp.leftovers import work_folder
from pipemare_exp.pipeline.schedule import costs


def run_ranks(spec: list[dict[str, Any]], ranks: int, timeout: float) -> list[dict[str, Any]]:
    """Every measurement of `spec`, done by `ranks` new processes with one thread each."""
    with work_folder(Path(tempfile.gettempdir()), "pipemare-bench-") as folder:
        (folder / "spec.json").write_text(json.dumps(spec), encoding="utf-8")
        rest = [str(ranks), str(folder / "store"), str(folder / "spec.json"), str(folder / "out.json")]
        started = [
            subprocess.Popen(
                tied.command("pipemare_exp.bench.runtime_rank", str(rank), *rest), stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
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
        return json.loads((folder / "out.json").read_text(encoding="utf-8"))


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
        row["utilization_model"] = methods.costs()[row["method"]].utilization(stages, row["microbatches"])
        del row["first_pieces"]
    for sync, asynchronous in zip(rows[::2], rows[1::2], strict=True):
        asynchronous["over_gpipe"] = asynchronous["steps_per_second"] / sync["steps_per_second"]
        asynchronous["over_gpipe_model"] = costs.gpipe_ratio(stages, asynchronous["microbatches"])
    return rows
