"""Weight decay of matrices only equals plain PyTorch with two parameter groups, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pipemare_exp import methods, optimizers
from pipemare_exp.pipeline.emulator.emulator import Emulator
from pipemare_exp.pipeline.model.units import weight_units
from pipemare_exp.pipeline.shape import Pipeline

OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "sgd": ("sgd", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    "adam, where it is L2": ("adam", {"betas": (0.9, 0.98), "weight_decay": 0.1}),
    "adamw, where it is decoupled": ("adamw", {"betas": (0.9, 0.98), "weight_decay": 0.1}),
}
STEPS, N = 12, 2


def network() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(2, 5, 3, bias=False), nn.GroupNorm(1, 5), nn.ReLU(), nn.Flatten(),
            nn.Linear(80, 17), nn.LayerNorm(17), nn.Linear(17, 9), nn.Linear(9, 3, bias=False),
        )  # fmt: skip


def minibatch(step: int) -> list[tuple[Tensor, Tensor]]:
    drawn = torch.Generator().manual_seed(step)
    return [(torch.randn(4, 2, 6, 6, generator=drawn), torch.randint(3, (4,), generator=drawn)) for _ in range(N)]


def loss(model: nn.Module, microbatch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(microbatch[0]), microbatch[1], reduction="sum") / (4 * N)


def rate(step: int) -> float:
    return 0.01 / (1 + step)


def emulator(
    kind: str, method: methods.Method | None = None, stages: int = 3, split: int = 1, decay: str = "matrices"
) -> Emulator:
    name, settings = OPTIMIZERS[kind]
    model = network()
    units = weight_units(model, lambda model: model(minibatch(0)[0][0]))
    pipeline = Pipeline(units, range(stages), N, split=split)
    make = optimizers.optimizer(name, decay=decay, **settings)
    return Emulator(model, pipeline, method or methods.build("gpipe"), make)


def train(made: Emulator, until: int = STEPS) -> list[Tensor]:
    while made.version < until:
        made.step(minibatch(made.version), loss, rate(made.version))
    return [parameter.detach().clone() for parameter in made.model.parameters()]


def plain(kind: str) -> list[Tensor]:
    name, settings = OPTIMIZERS[kind]
    model = network()
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() <= 1]
    made = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[name](
        [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}], lr=0.0, **settings
    )
    for step in range(STEPS):
        made.zero_grad()
        for microbatch in minibatch(step):
            loss(model, microbatch).backward()
        for group in made.param_groups:
            group["lr"] = rate(step)
        made.step()
    return [parameter.detach() for parameter in model.parameters()]


def equal(left: list[Tensor], right: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("stages, split", [(1, 1), (3, 1), (6, 1), (1, 5)])
def test_it_equals_two_groups_of_torch_s_optimizer(kind: str, stages: int, split: int) -> None:
    ours, theirs = train(emulator(kind, stages=stages, split=split)), plain(kind)
    assert equal(ours, theirs)
    assert not equal(ours, train(emulator(kind, decay="all")))


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_every_group_has_the_rate_of_its_stage_and_training_goes_on_bit_for_bit(kind: str) -> None:
    def fresh() -> Emulator:
        return emulator(kind, methods.build("pipemare", lr_rescheduling_steps=20, decay=0.5), stages=6)

    whole = fresh()
    weights = train(whole)
    rates = [group["lr"] for group in whole.optimizer.param_groups]
    assert rates == [whole.rates[stage] for stage in whole.weights.optimizer.group_stages]
    assert len(set(whole.rates)) > 1 and len(rates) > len(whole.rates)
    first, second = fresh(), fresh()
    train(first, 5)
    second.load_state_dict(first.state_dict())
    assert equal(train(second), weights)


def test_neighbours_of_a_kind_are_one_tensor_and_all_together_are_the_stage() -> None:
    made = emulator("sgd", stages=1)
    matrices, vectors = made.flat.by_rank(0)
    # conv | norm | linear | its bias, norm | linear | bias | linear
    assert (len(matrices), len(vectors)) == (4, 3)
    covered = sorted((part.storage_offset(), part.numel()) for part in [*matrices, *vectors])
    assert [start for start, _ in covered[1:]] == [start + size for start, size in covered[:-1]]
    assert sum(size for _, size in covered) == made.flat.weights.numel()
