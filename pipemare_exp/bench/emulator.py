"""`bench emulator`: time and memory of emulation over plain microbatched PyTorch."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from pipemare_exp.bench import workloads
from pipemare_exp.pipeline import costs
from pipemare_exp.pipeline.emulator import Emulator

# glibc gives every block above this to the system by itself and takes it back when freed, so that the peak of the
# resident set is the peak of what is allocated and not of what the allocator keeps for later.
_MALLOC = {"MALLOC_MMAP_THRESHOLD_": "4096", "MALLOC_TRIM_THRESHOLD_": "4096", "MALLOC_ARENA_MAX": "1"}


def compare(model: str, method: str, microbatches: int, *, batch: int | None, pairs: int, threads: int) -> dict:
    """One row of the table: ratio of an emulated step's time to a plain one's, and the extra memory it takes.

    Times are taken in alternating pairs (plain, emulated, plain, ...), so that whatever slows the machine for a while
    slows both; the row gives median, least and greatest ratio over the pairs. `extra_memory` is the peak of a fresh
    process that emulates less that of a fresh process that trains plainly, `predicted_memory` what ring and buffers
    should take, both in bytes.
    """
    torch.set_num_threads(threads)
    emulated = workloads.build(model, microbatches, batch)
    emulator = emulated.emulated(method)
    plain_step = workloads.build(model, microbatches, batch).plain_step()

    def emulated_step() -> None:
        emulator.step(emulated.microbatches, emulated.loss, 0.01)

    for _ in range(2):
        plain_step()
        emulated_step()
    times = [(_seconds(plain_step), _seconds(emulated_step)) for _ in range(pairs)]
    ratios = [there / here for here, there in times]
    extra = peak_memory(model, method, microbatches, batch, threads) - peak_memory(
        model, "plain", microbatches, batch, threads
    )
    return {
        "model": model,
        "method": method,
        "stages": len(emulator.boundaries),
        "microbatches": microbatches,
        "batch": batch or workloads.BATCHES[model],
        "threads": threads,
        "plain_seconds": statistics.median(here for here, _ in times),
        "emulated_seconds": statistics.median(there for _, there in times),
        "ratio_median": statistics.median(ratios),
        "ratio_min": min(ratios),
        "ratio_max": max(ratios),
        "extra_memory": extra,
        "predicted_memory": predicted_memory(emulator),
    }


def predicted_memory(emulator: Emulator) -> int:
    """Bytes of the ring and the method's buffers: sum over stages with a ring of (depth + 1) times its weights, plus
    delta, from the numbers of weights alone."""
    sizes = [flat.numel() for flat in emulator.flat_weights()]
    depths = [depth or 0 for depth in emulator.method.depths()]
    return emulator.flat.weights.element_size() * costs.emulator_memory(
        sizes, depths, delta=any(emulator.method.tracks())
    )


def peak_memory(model: str, method: str, microbatches: int, batch: int | None, threads: int) -> int:
    """Peak resident bytes of a fresh process that makes two steps (method "plain": plain PyTorch)."""
    job = json.dumps({"model": model, "method": method, "microbatches": microbatches, "batch": batch})
    environment = os.environ | _MALLOC | {"OMP_NUM_THREADS": str(threads)}
    command = [sys.executable, "-m", "pipemare_exp.bench.emulator", job]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"the memory measurement of {model}/{method} failed:\n{done.stderr}")
    return int(done.stdout)


def _seconds(step: Callable[[], Any]) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def _steps(workload: workloads.Workload, method: str) -> None:
    if method == "plain":
        step = workload.plain_step()
    else:
        emulator = workload.emulated(method)

        def step() -> None:
            emulator.step(workload.microbatches, workload.loss, 0.01)

    for _ in range(2):  # after the first, the optimizer's state is there too
        step()


def _peak_of(job: dict) -> int:
    # Both processes first run both kinds of step with a very narrow network: the pages of torch's own code count as
    # resident once touched, and would otherwise be charged to the one that touches more of them.
    for method in ("plain", "t1+t2"):
        _steps(workloads.build("resnet20", 2, 4, width=1), method)
    _steps(workloads.build(job["model"], job["microbatches"], job["batch"]), job["method"])
    with open("/proc/self/status") as status:
        peak = next(line for line in status if line.startswith("VmHWM"))
    return int(peak.split()[1]) * 1024


if __name__ == "__main__":
    print(_peak_of(json.loads(sys.argv[1])))
