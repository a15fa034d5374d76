"""What all ranks agree on about the training: how stages are trained, and what is to be told to whom when."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pipemare_exp.pipeline.clipping import Clip
from pipemare_exp.pipeline.engine import Loss
from pipemare_exp.pipeline.method import Method
from pipemare_exp.pipeline.weights.optimizer_groups import MakeOptimizer


@dataclass(frozen=True)
class Training:
    """How every stage is trained.

    - `make_method`: makes the method, a new object for every stage;
    - `optimizer`: makes a torch optimizer from a stage's parameter group;
    - `loss(model, microbatch)`: as the emulator takes it;
    - `rate(t)`: alpha_base of step t, counted from 0;
    - `seed`: of the dropout masks;
    - `clip`: None, or ("stage", largest norm).
    """

    make_method: Callable[[], Method]
    optimizer: MakeOptimizer
    loss: Loss
    rate: Callable[[int], float]
    seed: int = 0
    clip: Clip = None


def _never(version: int) -> bool:
    return False


def _no_checkpoint(version: int) -> tuple[bool, bool]:
    return False, False


@dataclass(frozen=True)
class Hooks:
    """Where the training loop around the runtime is asked, and is told.

    - `observed(t)`: whether rank 0 wants weights and statistics after t steps; every rank answers alike;
    - `measured(t)`: whether rank 0 wants the stages' gradient norms and delays of the step that makes version t, and
      where t is observed too, how much of their state is not finite; every rank answers alike;
    - `checkpoint(t)`: asked once, on rank 0, when step t - 1 begins: (save at version t or not, end there or not);
    - `save(t, states)`: called on every rank with the state of its stages at version t, to be written down.
    """

    observed: Callable[[int], bool] = _never
    checkpoint: Callable[[int], tuple[bool, bool]] = _no_checkpoint
    save: Callable[[int, dict[int, dict[str, Any]]], None] | None = None
    measured: Callable[[int], bool] = _never
