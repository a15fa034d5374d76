"""A torch optimizer over all stages, as a method sees it: its update, its rates, the direction it would go on in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pipemare_exp.errors import UserError
from pipemare_exp.pipeline.weights.flat import FlatWeights
from pipemare_exp.pipeline.weights.history import History
from pipemare_exp.pipeline.weights.optimizer_groups import MakeOptimizer, optimizer_of


class StageOptimizer:
    """The optimizer that `make` makes over the stages of `flat` which have weights (`owned`).

    - `torch`: torch's optimizer itself;
    - `group_stages`: the stage of each of its parameter groups;
    - `rates`: each stage's rate in the running update, and after it until the next.
    """

    def __init__(self, make: MakeOptimizer, flat: FlatWeights, owned: Sequence[int], history: History) -> None:
        self.torch, self.group_stages = optimizer_of(make, flat, owned)
        self.rates = [0.0] * len(flat.stages)
        self._flat, self._history = flat, history

    @property
    def name(self) -> str:
        """The class of torch's optimizer: SGD, Adam, AdamW, NAdam."""
        return type(self.torch).__name__

    def groups(self, stage: int) -> list[dict[str, Any]]:
        """The parameter groups of `stage`. A method may change their options, its betas say, when it is told of the
        optimizer (`Method.prepare_optimizer`)."""
        return [
            group for group, owner in zip(self.torch.param_groups, self.group_stages, strict=True) if owner == stage
        ]

    def set_rates(self, rates: Sequence[float]) -> None:
        """Give every stage its rate for the next update."""
        self.rates = list(rates)
        for group, stage in zip(self.torch.param_groups, self.group_stages, strict=True):
            group["lr"] = self.rates[stage]

    def step(self, without: Sequence[int] = ()) -> None:
        """The optimizer's update of all stages from their gradients. The stages of `without` keep their weights and
        their optimizer's state as they are."""
        left_out = [p for stage in without for group in self.groups(stage) for p in group["params"]]
        gradients = [parameter.grad for parameter in left_out]
        for parameter in left_out:
            parameter.grad = None  # torch's optimizers pass over these
        self.torch.step()
        for parameter, gradient in zip(left_out, gradients, strict=True):
            parameter.grad = gradient

    def direction(self, stage: int, out: Tensor) -> None:
        """Write the direction that the update just made has moved `stage` in into `out`, a flat tensor of its size:
        the weights went (but for decoupled weight decay and Nesterov's extra term) to w - rate * direction.

        SGD: the momentum buffer, or without momentum the gradient with its weight decay. Adam, AdamW:
        m_hat / (sqrt(v_hat) + eps). Zero where no update was made yet. Raises UserError for another optimizer.
        """
        check_direction(self.name)
        out.zero_()
        for group in self.groups(stage):
            for parameter in group["params"]:
                if parameter in self.torch.state or self.name == "SGD":
                    self._write_direction(group, parameter, self.part(stage, parameter, out), stage)

    def part(self, stage: int, parameter: nn.Parameter, whole: Tensor) -> Tensor:
        """The view of `whole`, a flat tensor of the size of `stage`, at which `parameter` lies in the stage."""
        first = self._flat.stages[stage].storage_offset()
        return whole.as_strided(
            parameter.size(), parameter.stride(), whole.storage_offset() + parameter.storage_offset() - first
        )

    def _write_direction(self, group: dict[str, Any], parameter: nn.Parameter, place: Tensor, stage: int) -> None:
        state = self.torch.state[parameter]
        if self.name != "SGD":
            step, (first, second) = float(state["step"]), group["betas"]
            scale = (state["exp_avg_sq"] / (1.0 - second**step)).sqrt_().add_(group["eps"])
            torch.div(state["exp_avg"] / (1.0 - first**step), scale, out=place)
        elif group["momentum"]:
            if state.get("momentum_buffer") is not None:
                place.copy_(state["momentum_buffer"])
        else:
            assert parameter.grad is not None
            before = self.part(stage, parameter, self._history.version(stage, self._history.current))
            torch.add(parameter.grad, before, alpha=group["weight_decay"], out=place)


WITH_DIRECTION = ("SGD", "Adam", "AdamW")


def check_direction(name: str, who: str = "this method") -> None:
    """UserError for an optimizer, by its class's `name`, whose direction is not defined; `who` asks for it."""
    if name not in WITH_DIRECTION:
        raise UserError(
            f"{who} with the optimizer {name}: the direction that it extrapolates along is defined for "
            f"{', '.join(WITH_DIRECTION)}; take optimizer=sgd, adam or adamw"
        )
