"""Rate schedules against their formulas, written out step by step, and the optimizers that a name makes."""

from __future__ import annotations

import math

import pytest
import torch

from pipemare_exp import optimizers
from pipemare_exp.errors import UserError


def test_constant_with_warmup():
    rate = optimizers.rate_schedule("constant", 0.4, 100, warmup_steps=4)
    assert [rate(t) for t in range(6)] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4, 0.4])


@pytest.mark.parametrize("milestones", [(0.4, 0.8), (40, 80), (80, 0.4)])
def test_step_decay_takes_fractions_and_steps(milestones):
    rate = optimizers.rate_schedule("step_decay", 0.1, 100, milestones=milestones, factor=0.1)
    wanted = [0.1] * 40 + [0.01] * 40 + [0.001] * 20
    assert [rate(t) for t in range(100)] == pytest.approx(wanted)


def test_cosine_falls_from_the_base_rate_to_the_final_fraction():
    rate = optimizers.rate_schedule("cosine", 2.0, 50, warmup_steps=10, final_fraction=0.25)
    assert rate(9) == pytest.approx(2.0) and rate(10) == pytest.approx(2.0)
    assert rate(30) == pytest.approx(2.0 * (0.25 + 0.75 / 2))  # half way
    assert rate(50) == pytest.approx(0.5)
    falling = [rate(t) for t in range(10, 50)]
    assert falling == sorted(falling, reverse=True)


def test_inverse_square_root_as_published():
    """fairseq's inverse_sqrt: linear to the base rate at update W, then base * sqrt(W / update)."""
    warmup, base = 4000, 5e-4
    rate = optimizers.rate_schedule("inverse_sqrt", base, 50_000, warmup_steps=warmup)
    for update in (1, 2, 1000, 4000, 4001, 16_000, 40_000):
        wanted = base * min(update / warmup, math.sqrt(warmup / update))
        assert rate(update - 1) == pytest.approx(wanted, rel=1e-12), update


@pytest.mark.parametrize("name, nearest", [("step", "step_decay"), ("cosin", "cosine")])
def test_an_unknown_schedule_is_refused_with_the_nearest_name(name, nearest):
    with pytest.raises(UserError, match=nearest):
        optimizers.rate_schedule(name, 0.1, 10)


@pytest.mark.parametrize(
    "name, options, kind",
    [
        ("sgd", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}, torch.optim.SGD),
        ("adam", {"betas": (0.8, 0.9), "weight_decay": 0.1}, torch.optim.Adam),
        ("adamw", {"betas": (0.9, 0.98), "eps": 1e-6}, torch.optim.AdamW),
    ],
)
def test_optimizers_are_those_of_torch_with_the_options_given(name, options, kind):
    weight = torch.nn.Parameter(torch.ones(3))
    made = optimizers.optimizer(name, **options)([{"params": [weight], "lr": 0.5}])
    assert type(made) is kind
    group = made.param_groups[0]
    assert group["lr"] == 0.5 and group["foreach"] is True and not group["fused"]
    assert all(group[option] == value for option, value in options.items())


def test_an_unknown_optimizer_is_refused():
    with pytest.raises(UserError, match="adamw"):
        optimizers.optimizer("adamW")
