"""Process groups of a test: started, waited for with a bound, never left behind."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from pipemare_exp import tied

HERE = __name__.rpartition(".")[0]
ROOT = Path(__file__).parents[3]


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}


def run_cases(cases: Sequence, ranks: int, folder: Path, timeout: float = 240.0) -> None:
    """Run `cases` on `ranks` processes, which write into `folder`. Fails with what they printed."""
    (folder / "cases.json").write_text(json.dumps([case.as_dict() for case in cases]))
    started = [
        subprocess.Popen(
            tied.command(f"{HERE}.runtime_rank", str(rank), str(ranks), str(folder / "store"),
                         str(folder / "cases.json"), str(folder)),
            env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank in range(ranks)
    ]  # fmt: skip
    try:
        printed = [process.communicate(timeout=timeout)[0] for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
    codes = [process.returncode for process in started]
    assert codes == [0] * ranks, "\n".join(f"exit code {c}:\n{p}" for c, p in zip(codes, printed, strict=True))
