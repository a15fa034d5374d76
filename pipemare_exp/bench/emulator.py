"""`bench emulator`: time and memory of emulation over plain microbatched PyTorch."""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import torch

from pipemare_exp.bench import workloads
from pipemare_exp.experiment.training.memory import peak_resident
from pipemare_exp.pipeline.emulator.emulator import Emulator
from pipemare_exp.pipeline.emulator.ways import Beside
from pipemare_exp.pipeline.schedule import costs
from pipemare_exp.pipeline.weights.reads import Read
from pipemare_exp.pipeline.weights.staged_copies import BACKWARD, FEWEST, FORWARD

# glibc gives every block above this to the system by itself and takes it back when freed, so that the peak of the
# resident set is the peak of what is allocated and not of what the allocator keeps for later.
_MALLOC = {"MALLOC_MMAP_THRESHOLD_": "4096", "MALLOC_TRIM_THRESHOLD_": "4096", "MALLOC_ARENA_MAX": "1"}

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


def compare(
    model: str,
    methods: Sequence[str],
    microbatches: int,
    *,
    batch: int | None,
    pairs: int,
    threads: int,
    stages: int | None = None,
    width: int | None = None,
    memory: bool = True,
    clock: str = "wall",
) -> list[dict[str, Any]]:
    """Rows of the table, plain PyTorch first: the time of a step, its ratio to a plain one's, and memory.

    Times are taken in `pairs` rounds in which plain PyTorch and every method make one step each, so that whatever slows
    the machine for a while slows all, and each begins in its turn; a row gives median, least and greatest ratio to the
    plain step of the same round.
    `peak_memory` is of a fresh process, `extra_memory` what it takes beyond the plain one's, `predicted_memory` what
    the rings, buffers and staged copies should take, all in bytes, and None without `memory`. `moved_bytes`: read and
    written by the emulator in a step of steady state, by counting. `overhead_seconds`: median of the differences.
    `clock`: one of CLOCKS; "cpu" is the process's own time, for a machine that others use too, and means something with
    one thread.
    """
    peaks: dict[str, int] = {}
    if memory:  # before this process has models of its own: a large one would not fit a second time
        peaks = {name: peak_memory(model, name, microbatches, batch, threads) for name in ("plain", *methods)}
    torch.set_num_threads(threads)
    plain = workloads.build(model, microbatches, batch, width).plain_step()
    emulators = {}
    steps: dict[str, Callable[[], Any]] = {"plain": plain}
    for method in methods:
        workload = workloads.build(model, microbatches, batch, width)
        emulators[method] = emulator = workload.emulated(method, stages)
        steps[method] = _emulated_step(workload, emulator)
    for step in [*steps.values()] * 2:
        step()
    gc.collect()  # else the first full collection, over all that the imports made, falls into one of the steps timed
    order = list(steps.items())
    rounds = [
        {name: _seconds(step, CLOCKS[clock]) for name, step in order[k % len(order) :] + order[: k % len(order)]}
        for k in range(pairs)
    ]
    rows: list[dict[str, Any]] = []
    for name in steps:
        ratios = [times[name] / times["plain"] for times in rounds]
        row: dict[str, Any] = {
            "model": model,
            "method": name,
            "stages": emulators[name].pipeline.stages if name in emulators else None,
            "microbatches": microbatches,
            "batch": batch or workloads.BATCHES[model],
            "threads": threads,
            "rounds": pairs,
            "clock": clock,
            "seconds": statistics.median(times[name] for times in rounds),
            "ratio_median": statistics.median(ratios),
            "ratio_min": min(ratios),
            "ratio_max": max(ratios),
            "overhead_seconds": statistics.median(times[name] - times["plain"] for times in rounds),
            "moved_bytes": 0,
            "predicted_memory": 0,
        }
        if name in emulators:
            row["moved_bytes"] = moved_bytes(emulators[name])
            row["predicted_memory"] = predicted_memory(emulators[name])
        row["peak_memory"] = peaks.get(name)
        row["extra_memory"] = peaks[name] - peaks["plain"] if memory else None
        rows.append(row)
    return rows


def in_processes(count: int, model: str, methods: Sequence[str], microbatches: int, **options: Any) -> list[dict]:
    """Rows of `compare` from `count` fresh processes, one after the other: medians over the processes.

    Where the memory of one process happens to lie makes one model's steps faster than another's by a per cent or two,
    in all its rounds: two copies of plain PyTorch differ as much. `ratio_min` and `ratio_max` are here the least and
    the greatest of the processes' medians, which `ratio_medians` lists.
    """
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn, max_tasks_per_child=1) as pool:
        found = [pool.submit(compare, model, methods, microbatches, **options) for _ in range(count)]
        tables = [future.result() for future in found]
    rows = []
    for same in zip(*tables, strict=True):
        medians = [row["ratio_median"] for row in same]
        names = ["seconds", "overhead_seconds"] + ["peak_memory", "extra_memory"] * options["memory"]
        pooled = {name: statistics.median(row[name] for row in same) for name in names}
        ratios = {"ratio_median": statistics.median(medians), "ratio_min": min(medians), "ratio_max": max(medians)}
        rows.append({**same[0], **pooled, **ratios, "processes": count, "ratio_medians": medians})
    return rows


def _emulated_step(workload: workloads.Workload, emulator: Emulator) -> Callable[[], Any]:
    return lambda: emulator.step(workload.microbatches, workload.loss, 0.01)


def moved_bytes(emulator: Emulator) -> int:
    """Bytes that the emulator reads and writes in a step of steady state beyond what plain training does (a copy:
    twice the weights; a sum or an average of two: three times), counted by what the passes read. Clearing gradients and
    the optimizer are not counted: plain training has them too."""
    method, weights = emulator.method, emulator.weights
    sizes = [flat.numel() for flat in emulator.history.live]
    step = method.warmup_steps + max(method.delays, default=0) // method.microbatches + 2
    current = [Read(step)] * len(sizes)
    loaded, staged = current, {FORWARD: method.forward(step - 1, method.microbatches - 1), BACKWARD: None}
    estimated: set[int] = set()
    moved = 0

    def written(stages: Iterable[int], reads: Sequence[Read]) -> int:
        return sum((2 if reads[s].buffer is None else 3) * sizes[s] for s in stages)

    for n in range(method.microbatches):
        for which, reads in ((FORWARD, method.forward(step, n)), (BACKWARD, method.backward(step, n))):
            changed = [s for s, read in enumerate(reads) if read != loaded[s]]
            if which == BACKWARD and isinstance(emulator.way, Beside):
                fresh = [s for s in changed if reads[s].buffer is not None and s not in estimated]
                estimated.update(fresh)
                moved += written(fresh, reads)
                continue
            if len(changed) >= FEWEST and weights.staged is not None and weights.staged.nbytes:
                copy = staged[which]
                moved += written([s for s, read in enumerate(reads) if copy is None or copy[s] != read], reads)
                moved += 2 * sum(sizes)
                staged[which] = reads
            else:
                moved += written(changed, reads)
            loaded = reads
    moved += written([s for s, read in enumerate(current) if read != loaded[s]], current)
    moved += sum(6 * size for size, tracked in zip(sizes, method.tracks(), strict=True) if tracked)
    moved += sum(2 * size for size, ring in zip(sizes, emulator.history.rings, strict=True) if ring is not None)
    return moved * emulator.flat.weights.element_size()


def predicted_memory(emulator: Emulator) -> int:
    """Bytes of the rings, the method's buffers and the staged copies by `costs.emulator_memory`, from the numbers of
    weights alone."""
    sizes = [flat.numel() for flat in emulator.flat_weights()]
    method = emulator.method
    depths = [depth or 0 for depth in method.depths()]
    step = method.warmup_steps + max(method.delays, default=0) // method.microbatches + 2
    swaps = method.backward(step, 0) != method.forward(step, 0)
    return emulator.flat.weights.element_size() * costs.emulator_memory(
        sizes, depths, delta=any(method.tracks()), staged=swaps and emulator.weights.staged is not None
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


def _seconds(step: Callable[[], Any], clock: Callable[[], float]) -> float:
    start = clock()
    step()
    return clock() - start


def _steps(workload: workloads.Workload, method: str) -> None:
    if method == "plain":
        step = workload.plain_step()
    else:
        step = _emulated_step(workload, workload.emulated(method))

    for _ in range(2):  # after the first, the optimizer's state is there too
        step()


def _peak_of(job: dict) -> int:
    # Both processes first run both kinds of step with a very narrow network: the pages of torch's own code count as
    # resident once touched, and would otherwise be charged to the one that touches more of them.
    for method in ("plain", "t1+t2"):
        _steps(workloads.build("resnet20", 2, 4, width=1), method)
    gc.collect()  # models and their hooks are cycles: they would else be counted until a collection happens to run
    _steps(workloads.build(job["model"], job["microbatches"], job["batch"]), job["method"])
    return peak_resident()


if __name__ == "__main__":
    print(_peak_of(json.loads(sys.argv[1])))
