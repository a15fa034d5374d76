"""What a torch optimizer is made from: one parameter group per stage, flat or in tensors of their own shape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from pipemare_exp.errors import UserError
from pipemare_exp.pipeline.weights.flat import FlatWeights

MakeOptimizer = Callable[[list[dict]], torch.optim.Optimizer]
"""make(groups): an optimizer over these groups, as they are and in this order. Each has rate 0: the engine sets every
stage's rate before every step."""


@dataclass(frozen=True)
class Shaped:
    """Makes an optimizer that looks at each parameter as the tensor it is (Muon orthogonalises matrices).

    A stage's group then holds one tensor per parameter, in forward order. Otherwise it holds one flat tensor, which
    suits every optimizer that works on each number by itself, and costs fewer operations."""

    make: MakeOptimizer

    def __call__(self, groups: list[dict]) -> torch.optim.Optimizer:
        return self.make(groups)


@dataclass(frozen=True)
class MatrixDecay:
    """Makes an optimizer whose weight decay leaves out the parameters of one dimension: biases and norms.

    A stage then has a group of flat tensors over its matrices (and tensors of more dimensions), and one, with
    weight_decay=0, over the others. Neighbours of a kind are one tensor."""

    make: MakeOptimizer

    def __call__(self, groups: list[dict]) -> torch.optim.Optimizer:
        return self.make(groups)


def _groups(make: MakeOptimizer, flat: FlatWeights, stage: int) -> list[dict]:
    if isinstance(make, Shaped):
        return [{"params": flat.shaped(stage)}]
    if isinstance(make, MatrixDecay):
        matrices, vectors = flat.by_rank(stage)
        groups: list[dict] = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
        return [group for group in groups if group["params"]]
    return [{"params": [flat.stages[stage]]}]


def optimizer_of(
    make: MakeOptimizer, flat: FlatWeights, stages: Sequence[int]
) -> tuple[torch.optim.Optimizer, list[int]]:
    """The optimizer of `stages`, which have weights, and the stage of each of its groups.

    Raises UserError where it has groups or rates of its own.
    """
    wanted = [(stage, group) for stage in stages for group in _groups(make, flat, stage)]
    made = make([{**group, "params": list(group["params"]), "lr": 0.0} for _, group in wanted])
    found = [group["params"] for group in made.param_groups]
    if [[id(p) for p in group] for group in found] != [[id(p) for p in group["params"]] for _, group in wanted]:
        raise UserError(
            f"the optimizer has {len(found)} parameter groups of its own: give it the {len(wanted)} that it is made "
            "from, those of its stages, as they are"
        )
    for group in made.param_groups:
        if group["lr"] != 0:
            raise UserError(
                f"the optimizer has a rate of its own, lr={group['lr']}: a stage's rate is the one given to step(), "
                "times what the method makes of it; leave the groups at lr=0"
            )
    return made, [stage for stage, _ in wanted]
