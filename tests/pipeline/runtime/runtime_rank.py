"""One rank of a test's process group: runs cases one after the other and writes what its stages end with.

python -m pipemare_exp.tied PARENT tests.pipeline.runtime.runtime_rank RANK RANKS STORE CASES.json OUT
"""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from pipemare_exp.pipeline.runtime.feed import Feed
from pipemare_exp.pipeline.runtime.rank import Runtime
from pipemare_exp.pipeline.runtime.routes import columns_of
from pipemare_exp.pipeline.runtime.training import Hooks, Training
from pipemare_exp.pipeline.runtime.transport import Transport
from pipemare_exp.pipeline.schedule.ranks import ranks_of
from pipemare_exp.pipeline.shape import Pipeline
from tests.pipeline.runtime.runtime_cases import Case, Workload

TIMEOUT = 60.0


def make(case: Case, hooks: Hooks | None = None, loss=None, timeout: float = TIMEOUT) -> Runtime:
    training = Workload(case)
    ranks = ranks_of(case.stages, case.ranks or case.stages)
    columns = columns_of(
        case.make_method(), case.stages, case.microbatches, case.steps, case.slots, case.segment, case.flush
    )
    return Runtime(
        training.model,
        Pipeline(training.units, training.boundaries, case.microbatches, case.slots, case.segment),
        Training(
            case.make_method,
            case.make_optimizer(),
            training.loss if loss is None else loss(training.loss),
            case.rate,
            case.seed,
            case.clipping,
        ),
        columns,
        Transport(ranks, timeout, torch.device("cpu")),
        Feed(training.minibatches, case.microbatches),
        hooks,
    )


def train(case: Case, out: Path) -> None:
    """Run the case; write weights, buffers and optimizer of this rank's stages, at rank 0 also the losses."""
    runtime = resumed(case, out) if case.resume else make(case)
    version, losses = case.resume or 0, []
    while runtime.advance():
        version += 1
        if runtime.rank == 0:
            losses.append(runtime.loss(version))
    runtime.transport.close()
    state = {
        "weights": {index: stage.flat_weights for index, stage in runtime.stages.items()},
        "buffers": {index: stage.buffers for index, stage in runtime.stages.items()},
        "optimizer": {index: stage.weights.optimizer.torch.state_dict() for index, stage in runtime.stages.items()},
        "versions": {
            index: 1 if (ring := stage.weights.history.rings[index]) is None else len(ring)
            for index, stage in runtime.stages.items()
        },
        "losses": losses,
        "events": runtime.timeline.export(),
        "memory": runtime.memory(),
    }
    torch.save(state, out / f"{case.name}.{runtime.rank}.pt")


def resumed(case: Case, out: Path) -> Runtime:
    """Run with a checkpoint at `case.resume`, on disk and back, and begin anew from it."""
    saved = out / f"{case.name}.{dist.get_rank()}.state.pt"

    def wish(version: int) -> tuple[bool, bool]:
        # Others are gathered at the same time; the one after is where this first run ends, wherever its stages are.
        return version >= case.resume - 1, version == case.resume + 1

    def save(version: int, states: dict) -> None:
        if version == case.resume:
            torch.save(states, saved)

    first = make(case, Hooks(checkpoint=wish, save=save))
    while first.advance():
        pass
    first.transport.close()
    second = make(case)
    second.feed.start(case.resume)
    second.restore(case.resume, torch.load(saved, weights_only=True))
    return second


def main() -> None:
    rank, ranks, store, cases, out = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(store, int(ranks)),
        rank=int(rank),
        world_size=int(ranks),
        timeout=timedelta(seconds=TIMEOUT),
    )
    for options in json.loads(Path(cases).read_text()):
        train(Case(**options), Path(out))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
