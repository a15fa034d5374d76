"""One rank of a test's process group: runs cases one after the other and writes what its stages end with.

    python runtime_rank.py RANK RANKS STORE CASES.json OUT
"""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parent))
from runtime_cases import Case, Training  # noqa: E402

from pipemare_exp.pipeline.columns import columns_of, ranks_of  # noqa: E402
from pipemare_exp.pipeline.runtime import Feed, Runtime  # noqa: E402
from pipemare_exp.pipeline.transport import Transport, watch_for_parent  # noqa: E402

TIMEOUT = 60.0


def make(case: Case, transport_of=None) -> tuple[Training, Runtime]:
    training = Training(case)
    ranks = ranks_of(case.stages, case.ranks or case.stages)
    columns = columns_of(
        case.make_method(), case.stages, case.microbatches, case.steps, case.slots, case.segment, case.flush
    )
    runtime = Runtime(
        training.model,
        training.units,
        training.boundaries,
        case.make_method,
        case.make_optimizer(),
        columns,
        ranks,
        Transport(ranks, TIMEOUT, torch.device("cpu")),
        Feed(training.minibatches, case.microbatches),
        training.loss,
        lambda step: case.rate,
        clip=case.clipping,
    )
    return training, runtime


def train(case: Case, out: Path) -> None:
    """Run the case; write weights and buffers of this rank's stages, at rank 0 also the losses, and peak counts."""
    _, runtime = make(case)
    losses, most = [], 0
    version = 0
    while runtime.advance():
        version += 1
        most = max(most, *(len(stage.graphs) for stage in runtime.stages.values()))
        if runtime.rank == 0:
            losses.append(runtime.loss(version))
    runtime.transport.close()
    state = {
        "weights": {index: stage.flat_weights for index, stage in runtime.stages.items()},
        "buffers": {index: stage.buffers for index, stage in runtime.stages.items()},
        "optimizer": {index: stage.weights.optimizer.state_dict() for index, stage in runtime.stages.items()},
        "versions": {
            index: 1 if (ring := stage.weights.history.rings[index]) is None else len(ring)
            for index, stage in runtime.stages.items()
        },
        "losses": losses,
        "events": runtime.timeline.export(),
        "memory": runtime.memory(),
    }
    torch.save(state, out / f"{case.name}.{runtime.rank}.pt")


def main() -> None:
    rank, ranks, store, cases, out = sys.argv[1:]
    torch.set_num_threads(1)
    watch_for_parent()
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
