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
    assert group["lr"] == 0.5 and group["foreach"] is False and not group["fused"]
    assert all(group[option] == value for option, value in options.items())


@pytest.mark.parametrize(
    "name, options",
    [
        ("sgd", {}),
        ("sgd", {"momentum": 0.9, "weight_decay": 5e-4}),
        ("sgd", {"momentum": 0.9, "nesterov": True, "weight_decay": 5e-4}),
        ("adam", {"betas": (0.9, 0.98), "eps": 1e-9, "weight_decay": 1e-4}),
        ("adamw", {"betas": (0.9, 0.98), "weight_decay": 1e-4}),
    ],
)
def test_the_kernels_of_a_cpu_equal_the_foreach_ones_bit_for_bit(name, options):
    kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[name]
    drawn = torch.Generator().manual_seed(0)
    ours, theirs = ([torch.nn.Parameter(torch.ones(size)) for size in (1, 7, 64, 1000, 5001)] for _ in range(2))
    one = optimizers.optimizer(name, **options)([{"params": [p], "lr": 0.0} for p in ours])
    other = kind([{"params": [p], "lr": 0.0} for p in theirs], foreach=True, **options)
    for _ in range(20):
        for index, (p, q) in enumerate(zip(ours, theirs, strict=True)):
            p.grad = torch.randn(p.shape, generator=drawn)
            q.grad = p.grad.clone()
            rate = torch.rand((), generator=drawn).item()
            one.param_groups[index]["lr"] = other.param_groups[index]["lr"] = rate
        one.step()
        other.step()
        assert all(torch.equal(p, q) for p, q in zip(ours, theirs, strict=True))


def test_an_unknown_optimizer_is_refused():
    with pytest.raises(UserError, match="adamw"):
        optimizers.optimizer("adamW")
