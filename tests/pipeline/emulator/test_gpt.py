"""GPT under every method against the slow reference: weights of its own for each pass, and masks by their keys."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from pipemare_exp import models
from tests.pipeline.reference import Adam, Trainer
from tests.pipeline.toys import METHODS, emulator, keyed_mask, rule
from tests.pipeline.two_weights import Net

STEPS, SEED, N = 20, 11, 3
ADAMW = Adam((0.9, 0.98), 1e-5, weight_decay=0.1, decoupled=True)


def make(tying: str, attention_dropout: float):
    with torch.random.fork_rng():
        torch.manual_seed(2)
        model = models.build(
            "gpt_tiny", vocabulary=13, positions=8, layers=2, width=8, heads=2, tying=tying, dropout=0.1,
            attention_dropout=attention_dropout,
        )  # fmt: skip
        for p in model.parameters():  # large weights: with 0.02 attention would hardly differ from a mean
            if p.dim() > 1:
                torch.nn.init.normal_(p, std=0.3)
    return model.double()


def loss(model, microbatch):
    tokens, count = microbatch
    return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten(), reduction="sum") / count


def minibatches(steps: int = STEPS):
    draw = torch.Generator().manual_seed(1)
    for step in range(steps):
        sizes = [1, 2, 1] if step % 5 else [2, 0, 1]
        yield [(torch.randint(13, (size, 8), generator=draw), 7 * sum(sizes)) if size else None for size in sizes]


def unit_names(tying: str) -> list[list[str]]:
    """The parameters of every unit, written down by hand."""
    names = [["tokens.weight"], ["positions.weight"]]
    for index in range(2):
        for child in ("norm1", "qkv", "out", "norm2", "up", "down"):
            names.append([f"blocks.{index}.{child}.weight", f"blocks.{index}.{child}.bias"])
    return [*names, ["norm.weight", "norm.bias"], *([["head.weight"]] if tying == "none" else [])]


# torch has one kernel of attention that drops weights and another, which never holds them all, that cannot.
@pytest.mark.parametrize(("tying", "attention_dropout"), [("none", 0.2), ("none", 0.0), ("decoder", 0.2)])
@pytest.mark.parametrize("label", METHODS)
def test_twenty_steps_against_the_reference(label, tying, attention_dropout):
    model, units = make(tying, attention_dropout), unit_names(tying)
    walker = Net(model)

    def gradient(forward, backward, microbatch, step, n):
        walker.mask = lambda name, call, p, values: keyed_mask(SEED, step, n, name, call, p, values)
        leaves = {name: w.requires_grad_() for name, w in forward.items()}
        value = loss(lambda x: walker(leaves, backward, x), microbatch)
        value.backward()
        return value.detach(), {name: w.grad for name, w in leaves.items()}

    described = rule(label, len(units), N, "duplex")
    weights = {name: w.detach().clone() for name, w in model.named_parameters()}
    slow = Trainer(weights, units, described, ADAMW, gradient)
    example = torch.zeros(1, 2, dtype=torch.int64)
    fast = emulator(model, example, list(range(len(units))), described, ADAMW, N, seed=SEED)
    for minibatch in minibatches():
        got, expected = float(fast.step(minibatch, loss, 0.004)), slow.step(minibatch, 0.004)
        assert got == pytest.approx(expected, rel=1e-6)
    now = slow.weights()
    for s, flat in enumerate(fast.flat_weights()):
        whole = torch.cat([now[name].flatten() for name in units[s]])
        before = torch.cat([weights[name].flatten() for name in units[s]])
        assert (flat - whole).norm() <= 1e-6 * whole.norm(), units[s]
        assert (whole - before).norm() > 1e-4 * before.norm(), units[s]  # nothing is compared if nothing moves
