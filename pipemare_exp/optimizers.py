"""torch.optim's optimizers over flat stages, and the rate schedules alpha_base(t), by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from pipemare_exp.errors import UserError, suggest
from pipemare_exp.pipeline.weights.optimizer_groups import MakeOptimizer, MatrixDecay

Schedule = Callable[[int], float]

OPTIMIZERS = ("sgd", "adam", "adamw", "nadamw")
DECAYS = ("all", "matrices")
SCHEDULES = ("constant", "step_decay", "cosine", "inverse_sqrt")


def optimizer(
    name: str,
    *,
    momentum: float = 0.0,
    nesterov: bool = False,
    weight_decay: float = 0.0,
    decay: str = "all",
    betas: Sequence[float] = (0.9, 0.999),
    eps: float = 1e-8,
    fused: bool = False,
) -> MakeOptimizer:
    """A maker of the torch optimizer `name` from parameter groups (one per stage), rates set by the emulator.

    Weight decay is L2 added to the gradient for sgd and adam, decoupled for adamw and nadamw. nadamw is torch's NAdam
    with its momentum decay of 0.004; torch has no fused kernel of it. `decay`: what decays, "all" weights
    or "matrices", which leaves out every parameter of one dimension: biases and norms. By default there is a kernel for
    each tensor on a CPU and there are foreach kernels elsewhere, whichever costs less: bitwise equal to plain
    PyTorch's. `fused` ones agree to about 1e-6.
    """
    if name not in OPTIMIZERS:
        raise UserError(f"optimizer.name={name}: known are {', '.join(OPTIMIZERS)}{suggest(name, OPTIMIZERS)}")
    if decay not in DECAYS:
        raise UserError(f"optimizer.decay={decay}: allowed are {', '.join(DECAYS)}{suggest(decay, DECAYS)}")
    if fused and name == "nadamw":
        raise UserError(
            "optimizer.fused=true with optimizer.name=nadamw: torch has no fused kernel of it; leave it out"
        )
    kinds: dict[str, Any] = {
        "sgd": torch.optim.SGD,
        "adam": torch.optim.Adam,
        "adamw": torch.optim.AdamW,
        "nadamw": torch.optim.NAdam,
    }
    own: dict[str, Any] = (
        {"momentum": momentum, "nesterov": nesterov} if name == "sgd" else {"betas": tuple(betas), "eps": eps}
    )

    def make(groups: list[dict]) -> torch.optim.Optimizer:
        foreach = not fused and groups[0]["params"][0].device.type != "cpu"
        special: dict[str, Any] = {"decoupled_weight_decay": True} if name == "nadamw" else {"fused": fused}
        return kinds[name](groups, lr=0.0, weight_decay=weight_decay, foreach=foreach, **special, **own)

    return MatrixDecay(make) if decay == "matrices" else make


def rate_schedule(
    name: str,
    base_rate: float,
    total_steps: int,
    *,
    warmup_steps: int = 0,
    milestones: Sequence[float] = (),
    factor: float = 0.1,
    final_fraction: float = 0.0,
) -> Schedule:
    """alpha_base(t) for t = 0 .. total_steps - 1, after a linear warm-up over `warmup_steps` updates.

    - constant: base_rate;
    - step_decay: base_rate * factor^(milestones passed); a milestone below 1 is a fraction of all steps, else a step;
    - cosine: from base_rate to final_fraction * base_rate along half a cosine;
    - inverse_sqrt: base_rate * sqrt(warmup_steps / (t + 1)) once warmed up (Vaswani et al. 2017, as in fairseq).

    The warm-up multiplies with (t + 1)/warmup_steps. The schedule runs over all updates; it does not restart when
    asynchronous training begins.
    """
    if name not in SCHEDULES:
        raise UserError(f"schedule.name={name}: known are {', '.join(SCHEDULES)}{suggest(name, SCHEDULES)}")
    steps = sorted(m * total_steps if m < 1 else m for m in milestones)

    def after_warmup(t: int) -> float:
        if name == "step_decay":
            return base_rate * factor ** sum(t >= step for step in steps)
        if name == "cosine":
            done = min((t - warmup_steps) / max(total_steps - warmup_steps, 1), 1.0)
            return base_rate * (final_fraction + (1 - final_fraction) * (1 + math.cos(math.pi * done)) / 2)
        if name == "inverse_sqrt":
            return base_rate * math.sqrt(max(warmup_steps, 1) / (t + 1))
        return base_rate

    def rate(t: int) -> float:
        if t < warmup_steps:
            return base_rate * (t + 1) / warmup_steps
        return after_warmup(t)

    return rate
