"""One rank of `pipemare bench runtime`.

    python -m pipemare_exp.tied PARENT pipemare_exp.bench.runtime_rank RANK RANKS STORE SPEC.json OUT.json

The spec is a list of measurements, each done by all ranks together; rank 0 writes what each gave.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from pipemare_exp import methods, models, optimizers
from pipemare_exp.pipeline.model.recompute import piece_starts, run_pieces
from pipemare_exp.pipeline.model.units import Piece, pieces, weight_units
from pipemare_exp.pipeline.runtime.feed import Feed
from pipemare_exp.pipeline.runtime.processes import keep_freed_memory, let_compute_first
from pipemare_exp.pipeline.runtime.rank import Runtime
from pipemare_exp.pipeline.runtime.routes import columns_of
from pipemare_exp.pipeline.runtime.timeline import aligned, utilization, windows
from pipemare_exp.pipeline.runtime.training import Training
from pipemare_exp.pipeline.runtime.transport import Transport
from pipemare_exp.pipeline.schedule.ranks import ranks_of
from pipemare_exp.pipeline.schedule.versions import history_depth, slot_delays
from pipemare_exp.pipeline.shape import Pipeline

TIMEOUT = 120.0


class _Sleep(torch.autograd.Function):
    """The identity, which takes a fixed time each way."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, seconds: float) -> Tensor:
        ctx.seconds = seconds
        time.sleep(seconds)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        time.sleep(ctx.seconds)
        return gradient, None


class Sleepers(nn.Module):
    """`stages` tiny layers whose forward and backward each take `seconds`, and next to no processor."""

    def __init__(self, stages: int, seconds: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(stages))
        self.seconds = seconds

    def pieces(self) -> list[Piece]:
        def run(layer: nn.Module) -> Any:
            return lambda state: (_Sleep.apply(layer(state[0]), self.seconds),)

        return [Piece(str(k), (layer,), run(layer)) for k, layer in enumerate(self.layers)]

    def forward(self, x: Tensor) -> Tensor:
        return run_pieces(self.pieces(), (x,))[0]


class Work:
    """A model, its units, and one minibatch that every step repeats."""

    def __init__(self, spec: dict[str, Any]) -> None:
        torch.manual_seed(0)
        count = spec["microbatches"]
        if spec["model"] == "sleep":
            self.model: Any = Sleepers(spec["stages"], spec["seconds"])
            self.x, self.y = torch.randn(count, 4), torch.zeros(count, dtype=torch.long)
        else:
            self.model = models.build(spec["model"])
            self.x = torch.randn(spec["batch"], *(models.images(spec["model"]) or ()))
            self.y = torch.randint(0, 10, (spec["batch"],))
        self.model.train()
        self.cut = pieces(self.model)
        with torch.no_grad():
            self.model.eval()
            self.units = weight_units(self.model, lambda model: model(self.x[:1]))
            self.model.train()
        starts = piece_starts(self.model, self.units, self.cut)
        self.first_pieces = spec["first_pieces"]
        self.boundaries = [starts[k] for k in self.first_pieces]
        total = len(self.y)
        parts = zip(self.x.tensor_split(count), self.y.tensor_split(count), strict=True)
        self.minibatch = [(x, y, total) for x, y in parts]

    def loss(self, model: nn.Module, microbatch: Any) -> Tensor:
        x, y, total = microbatch
        return F.cross_entropy(model(x), y, reduction="sum") / total

    def minibatches(self, start: int) -> Iterator[list[Any]]:
        while True:
            yield self.minibatch


def ours(spec: dict[str, Any]) -> dict[str, Any]:
    """Our runtime: steps a second and utilization between the fill and the drain."""
    work, ranks = Work(spec), dist.get_world_size()
    label = spec["method"]
    name, flush = ("gpipe", label) if label in ("gpipe", "1f1b") else (label.removesuffix("-t2"), "gpipe")
    options = {"decay": 0.5} if label.endswith("-t2") else {}

    def method() -> methods.Method:
        return methods.build(name, **options)

    count, steps = spec["microbatches"], spec["steps"]
    stages = ranks_of(len(work.boundaries), ranks)
    depth = 0 if name == "gpipe" else history_depth(max(slot_delays(len(work.boundaries))), count)
    columns = columns_of(method(), len(work.boundaries), count, steps + 2 * depth + 2, "duplex", flush=flush)
    runtime = Runtime(
        work.model,
        Pipeline(work.units, work.boundaries, count),
        Training(method, optimizers.optimizer("sgd", momentum=0.9), work.loss, lambda step: 0.001),
        columns,
        Transport(stages, TIMEOUT, torch.device("cpu")),
        Feed(work.minibatches, count),
    )
    while runtime.advance():
        pass
    own = {"timeline": runtime.timeline.export(), "memory": runtime.memory(), "resident": resident()}
    runtime.transport.close()
    exports: list[Any] = [None] * ranks
    dist.all_gather_object(exports, own)
    by_rank = aligned([export["timeline"] for export in exports])
    within = windows(by_rank, depth + 1, depth + 1 + steps)
    shares = utilization(by_rank, within)
    begin, end = within[0]
    return {
        "steps_per_second": steps / (end - begin),
        "utilization": sum(shares.values()) / ranks,
        "utilization_min": min(shares.values()),
        "busy_seconds": [share * (within[rank][1] - within[rank][0]) / steps for rank, share in shares.items()],
        "memory": [export["memory"] for export in exports],
        "resident": [export["resident"] for export in exports],
    }


def resident() -> int:
    """Bytes of this process that are in memory (Linux; 0 elsewhere)."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1]) * resource.getpagesize()
    except OSError:
        return 0


def torchs(spec: dict[str, Any]) -> dict[str, Any]:
    """torch.distributed.pipelining on the same cut, microbatches and optimizer."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

    work, rank, ranks = Work(spec), dist.get_rank(), dist.get_world_size()
    edges = [*work.first_pieces, len(work.cut)]
    part = _Part(work.cut[edges[rank] : edges[rank + 1]])
    stage = PipelineStage(part, rank, ranks, torch.device("cpu"))
    make = ScheduleGPipe if spec["method"] == "torch-gpipe" else Schedule1F1B
    schedule = make(stage, spec["microbatches"], loss_fn=F.cross_entropy)
    optimizer = torch.optim.SGD(part.parameters(), lr=0.001, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad(set_to_none=False)
        if rank == 0:
            schedule.step(work.x)
        elif rank == ranks - 1:
            schedule.step(target=work.y, losses=[])
        else:
            schedule.step()
        optimizer.step()

    for _ in range(2):
        step()
    dist.barrier()
    begun = time.perf_counter()
    for _ in range(spec["steps"]):
        step()
    dist.barrier()
    return {"steps_per_second": spec["steps"] / (time.perf_counter() - begun)}


class _Part(nn.Module):
    def __init__(self, parts: list[Piece]) -> None:
        super().__init__()
        self.parts = parts
        self.owned = nn.ModuleList(module for piece in parts for module in piece.modules)

    def forward(self, *state: Tensor) -> Any:
        out = run_pieces(self.parts, state)
        return out[0] if len(out) == 1 else out


def main() -> None:
    rank, ranks, store, spec, out = sys.argv[1:]
    torch.set_num_threads(1)
    keep_freed_memory()
    dist.init_process_group(
        "gloo", store=dist.FileStore(store, int(ranks)), rank=int(rank), world_size=int(ranks),
        timeout=timedelta(seconds=TIMEOUT),
    )  # fmt: skip
    let_compute_first()  # for torch's schedules too
    found = []
    for measurement in json.loads(Path(spec).read_text(encoding="utf-8")):
        measure = torchs if measurement["method"].startswith("torch-") else ours
        found.append({**measurement, **measure(measurement)})
        dist.barrier()
    if rank == "0":
        Path(out).write_text(json.dumps(found), encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
