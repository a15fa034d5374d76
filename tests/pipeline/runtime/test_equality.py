"""The runtime equals the emulator: weights, statistics, optimizer state and losses after 30 steps, bit for bit."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch

from pipemare_exp.pipeline.emulator.emulator import Emulator
from pipemare_exp.pipeline.shape import Pipeline
from tests.pipeline.runtime.runtime_cases import Case, Workload
from tests.pipeline.runtime.runtime_groups import run_cases

PAIR = [
    Case("gpipe", microbatches=3),
    Case("gpipe", microbatches=4, flush="1f1b", optimizer="adam"),
    Case("pipedream", microbatches=1),
    Case("pipedream", microbatches=2, slots="alternating"),
    Case("async", microbatches=3),
    Case("t1", microbatches=2),
    Case("t2", microbatches=2, clip=0.5),
    Case("t2", microbatches=1, slots="alternating"),
    Case("t1+t2", microbatches=4),
    Case("t1+t2+t3", microbatches=2),
    Case("t1+t2+t3", microbatches=3, slots="alternating"),
    Case("t1+t2", microbatches=2, stages=5, ranks=2),
    Case("t1+t2+t3", microbatches=2, stages=4, ranks=2, segment=2),
    Case("t2", microbatches=1, segment=2),
    Case("t1+t2+t3", microbatches=2, model="dropout", segment=1),
    Case("pipedream+t3", microbatches=2, model="dropout", seed=5),
    Case("t1+t2", microbatches=2, model="dropout", schedule="falling"),
    Case("gpipe", microbatches=2, model="transformer", optimizer="adamw"),
    Case("t1+t2+t3", microbatches=2, model="transformer", optimizer="adamw"),
    Case("t2", microbatches=2, model="transformer", optimizer="adamw", segment=2, stages=4, ranks=2),
    Case("pipedream", microbatches=2, model="gpt", optimizer="adamw"),
    Case("t1+t2+t3", microbatches=3, model="gpt", optimizer="adamw", stages=16, ranks=2),
    Case("t2", microbatches=2, model="gpt", optimizer="adamw", segment=2, stages=4, ranks=2),
    Case("t1+t2", microbatches=2, decay="matrices"),
    Case("t1", microbatches=2, model="transformer", optimizer="adamw", decay="matrices"),
]


# A checkpoint is never drained: microbatches in flight, messages under way and the versions they read go on.
RESUMED = [
    Case("t1+t2", microbatches=1, resume=11),
    Case("pipedream", microbatches=2, resume=13),
    Case("t1+t2+t3", microbatches=2, resume=7),
    Case("t1+t2+t3", microbatches=2, resume=8, model="dropout"),
    Case("t2", microbatches=3, slots="alternating", resume=18),
    Case("t1+t2", microbatches=2, stages=5, ranks=2, resume=13),
    Case("t1+t2", microbatches=1, stages=4, ranks=2, segment=2, resume=12, model="dropout"),
    Case("t2", microbatches=2, stages=4, ranks=2, segment=4, resume=14),
    Case("t1+t2", microbatches=1, model="transformer", optimizer="adamw", resume=10),
    Case("gpipe", microbatches=2, resume=20),
    Case("t1+t2", microbatches=2, decay="matrices", resume=9),
]


def emulate(case: Case) -> tuple[Workload, Emulator, list[torch.Tensor]]:
    training = Workload(case)
    pipeline = Pipeline(training.units, training.boundaries, case.microbatches, case.slots, case.segment)
    emulator = Emulator(
        training.model, pipeline, case.make_method(), case.make_optimizer(), seed=case.seed, clip=case.clipping
    )
    losses = [
        emulator.step(minibatch, training.loss, case.rate(step))
        for step, minibatch in enumerate(training.minibatches(0))
    ]
    return training, emulator, losses


def check(case: Case, folder: Path) -> None:
    ranks = case.ranks or case.stages
    results = [torch.load(folder / f"{case.name}.{rank}.pt", weights_only=True) for rank in range(ranks)]
    training, emulator, losses = emulate(case)
    weights = {stage: tensor for result in results for stage, tensor in result["weights"].items()}
    expected = emulator.flat_weights()
    assert sorted(weights) == list(range(case.stages))
    start = Workload(case)
    for stage, tensor in enumerate(expected):
        assert torch.equal(weights[stage], tensor), f"stage {stage} differs by {(weights[stage] - tensor).abs().max()}"
    moved = [not torch.equal(a, b) for a, b in zip(start.model.parameters(), training.model.parameters(), strict=True)]
    assert all(moved), "nothing was trained"
    buffers = [b for result in results for stage in sorted(result["buffers"]) for b in result["buffers"][stage]]
    statistics = [b for name, b in training.model.named_buffers() if "running" in name or "tracked" in name]
    if statistics:
        assert sorted(map(_fingerprint, buffers)) == sorted(map(_fingerprint, statistics))
    assert [loss.item() for loss in results[0]["losses"]] == [loss.item() for loss in losses[case.resume or 0 :]]
    groups = list(zip(emulator.weights.optimizer.group_stages, emulator.optimizer.param_groups, strict=True))
    for stage in range(case.stages):
        mine = next(r["optimizer"][stage] for r in results if stage in r["optimizer"])["state"]
        parameters = [parameter for owner, group in groups if owner == stage for parameter in group["params"]]
        for index, kept in mine.items():
            theirs = emulator.optimizer.state[parameters[index]]
            for name, value in kept.items():
                assert torch.equal(torch.as_tensor(value), torch.as_tensor(theirs[name])), f"{name} of stage {stage}"


def _fingerprint(tensor: torch.Tensor) -> tuple[float, ...]:
    return tuple(tensor.flatten().tolist())


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pair")
    run_cases([*PAIR, *RESUMED], 2, folder)
    return folder


@pytest.mark.parametrize("case", PAIR, ids=lambda case: case.name)
def test_two_ranks_equal_the_emulator(case: Case, pair: Path) -> None:
    check(case, pair)


@pytest.mark.parametrize("case", RESUMED, ids=lambda case: case.name)
def test_a_resumed_pipeline_equals_the_emulator(case: Case, pair: Path) -> None:
    check(case, pair)


def test_pipedream_stashes_the_versions_in_flight_only(pair: Path) -> None:
    """P = 2 in duplex slots: delays 3 and 1. With N = 1 that is 3 versions behind at most, and 1."""
    found = [torch.load(pair / f"{PAIR[2].name}.{rank}.pt", weights_only=True)["versions"] for rank in range(2)]
    assert found == [{0: 4}, {1: 2}]


FULL = [
    Case(method, stages=stages, microbatches=microbatches, slots=slots)
    for method, stages, microbatches, slots in itertools.product(
        ("pipedream", "async", "t1", "t2", "t1+t2", "t1+t2+t3"), (2, 3, 4), (1, 2, 3, 4), ("duplex", "alternating")
    )
]
FULL += [
    Case("gpipe", stages=stages, microbatches=microbatches, flush=flush)
    for stages, microbatches, flush in itertools.product((2, 3, 4), (1, 2, 3, 4), ("gpipe", "1f1b"))
]
FULL += [
    Case(method, stages=stages, microbatches=microbatches, segment=segment)
    for method, stages, microbatches, segment in itertools.product(
        ("async", "t1+t2", "t1+t2+t3"), (3, 4), (1, 2, 3), (1, 2, 3)
    )
]
FULL += [
    Case(method, stages=stages, microbatches=microbatches, model=model, optimizer=optimizer)
    for method, stages, microbatches, (model, optimizer) in itertools.product(
        ("gpipe", "pipedream", "async", "t1+t2+t3"),
        (3, 4),
        (1, 3),
        (("dropout", "sgd"), ("transformer", "adamw")),
    )
]


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_every_method_equals_the_emulator(ranks: int, tmp_path: Path) -> None:
    cases = [case for case in FULL if case.stages == ranks]
    run_cases(cases, ranks, tmp_path, timeout=1800.0)
    for case in cases:
        check(case, tmp_path)
