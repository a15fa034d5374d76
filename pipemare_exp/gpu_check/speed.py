"""What does a step take, eagerly and from CUDA graphs, and how long is an epoch?"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from pipemare_exp.experiment.config.schema import Config
from pipemare_exp.experiment.training import assemble
from pipemare_exp.gpu_check.cases import Case, loss, synchronize
from pipemare_exp.pipeline.emulator.ways import Captured
from pipemare_exp.pipeline.weights.precision import allow_tf32

TRAIN = 50_000
"""Images in an epoch of CIFAR-10."""
WARM_UP = 3
"""Steps before the first that counts: kernels are loaded, graphs captured."""


def table(
    device: torch.device, model: str, methods: list[str], sizes: list[int], precisions: list[str], steps: int,
    say: Any = print,
) -> list[dict[str, Any]]:  # fmt: skip
    """Rows for N = 8 and microbatches of `sizes` images: plain PyTorch, and each method eagerly and from graphs.

    `seconds` is the median of `steps` steps, each waited for; `epoch_seconds` what 50,000 images take at that speed
    (training alone); `ratio` the eager step of the same method over this one; `memory` the peak of the steps, bytes.
    """
    rows = []
    for precision in precisions:
        allow_tf32(precision == "tf32")
        for size in sizes:
            case = Case(model, microbatches=8, size=size)
            if precision != "bf16":
                rows.append(_row(case, "plain PyTorch", precision, "eager", _plain(case, device), device, steps))
                say(line(rows[-1]))
            for method in methods:
                for graphs in ("off", "on"):
                    step = _emulated(case, method, device, precision, graphs)
                    rows.append(
                        _row(case, method, precision, "graphs" if graphs == "on" else "eager", step, device, steps)
                    )
                    if graphs == "on":
                        rows[-1]["ratio"] = rows[-2]["seconds"] / rows[-1]["seconds"]
                    say(line(rows[-1]))
    allow_tf32(False)
    return rows


def _row(
    case: Case, method: str, precision: str, how: str, step: Callable[[int], Any], device: torch.device, steps: int
) -> dict[str, Any]:
    for index in range(WARM_UP):
        step(index)
    synchronize(device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    times = []
    for index in range(WARM_UP, WARM_UP + steps):
        began = time.perf_counter()
        step(index)
        synchronize(device)
        times.append(time.perf_counter() - began)
    seconds, batch = statistics.median(times), case.size * case.microbatches
    return {
        "model": case.model,
        "method": method,
        "precision": precision,
        "how": how,
        "microbatches": case.microbatches,
        "microbatch_size": case.size,
        "seconds": seconds,
        "epoch_seconds": seconds * TRAIN / batch,
        "ratio": None,
        "memory": torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None,
    }


def _emulated(case: Case, method: str, device: torch.device, precision: str, graphs: str) -> Callable[[int], Any]:
    emulator = case.emulator(method, device, precision=precision, graphs=graphs)
    minibatch = case.minibatch(0, device)
    return lambda index: emulator.step(minibatch, loss, 0.01)


def _plain(case: Case, device: torch.device) -> Callable[[int], Any]:
    """Gradients accumulated over the microbatches, one foreach optimizer over the model's own parameters."""
    model, minibatch = case.build(device), case.minibatch(0, device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4, foreach=True)

    def step(_: int) -> None:
        optimizer.zero_grad(set_to_none=True)
        for microbatch in minibatch:
            assert microbatch is not None
            loss(model, microbatch).backward()
        optimizer.step()

    return step


def line(row: dict[str, Any]) -> str:
    """A row for a terminal."""
    ratio = "" if row["ratio"] is None else f"  {row['ratio']:.2f}x the eager speed"
    memory = "" if row["memory"] is None else f"  {row['memory'] / 1e9:.2f} GB"
    return (
        f"{row['model']}  {row['method']:<13} {row['precision']} {row['how']:<6} {row['microbatches']} x "
        f"{row['microbatch_size']:<3} {1000 * row['seconds']:8.1f} ms a step  {row['epoch_seconds']:7.1f} s an epoch"
        f"{memory}{ratio}"
    )


def epoch(cfg: Config, steps: int | None = None, say: Any = print) -> dict[str, Any]:
    """One epoch as a run trains it (real data, augmentation, losses looked at, evaluation), captures included.

    `steps`: stop after so many, and give what the whole epoch would take.
    """
    prepared = assemble.prepare(cfg)
    task, emulator = prepared.task, prepared.emulator()
    device = emulator.flat.weights.device
    rate, losses, done = prepared.rate(), [], 0
    began = time.perf_counter()
    for minibatch in task.minibatches(0):
        losses.append(emulator.step(minibatch, task.loss, rate(done)))
        done += 1
        if done % cfg.log_every == 0:
            torch.stack(losses).tolist()
            losses = []
        if done == steps:
            break
    synchronize(device)
    training = (time.perf_counter() - began) / done * task.steps_per_epoch
    began = time.perf_counter()
    with emulator.evaluation() as model:
        task.evaluate(model)
    evaluating = time.perf_counter() - began
    row = {
        "method": prepared.cfg.method.label,
        "model": cfg.model.name,
        "stages": prepared.cfg.pipeline.stages,
        "microbatches": cfg.pipeline.microbatches,
        "batch_size": cfg.data.batch_size,
        "precision": cfg.precision or "fp32",
        "captured": emulator.way.captures.captured if isinstance(emulator.way, Captured) else 0,
        "training_seconds": training,
        "evaluation_seconds": evaluating,
        "measured_steps": done,
        "steps_per_epoch": task.steps_per_epoch,
    }
    say(f"{row['model']} {row['method']}: {training:.1f} s an epoch of {task.steps_per_epoch} steps ({done} measured), "
        f"{evaluating:.1f} s an evaluation")  # fmt: skip
    return row
