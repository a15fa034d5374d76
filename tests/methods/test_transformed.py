"""Methods that change gradients or updates, where the outcome is known exactly."""

import itertools
import math

import pytest
import torch

from pipemare_exp import methods, optimizers
from pipemare_exp.errors import UserError
from tests.methods.binding import bound
from tests.methods.quadratic import momentum, path
from tests.pipeline.toys import dense_net, emulator, loss, minibatches, same


def error_of_gradient(method, rate, at=12):
    """f = -log w, three steps late: how far the gradient that update `at` used is from f' at the current weight."""
    walked, _ = path(method, at + 1, lambda w, t: -torch.log(w), rate=rate, stages=2)
    now, after = walked[at, 0], walked[at + 1, 0]
    return abs(float((now - after) / rate + 1 / now))


def test_compensation_leaves_an_error_of_second_order():
    """f'' = f'^2, so lambda = 1 removes the first order of the gap: halving the rate divides what is left by 4, and
    without compensation by 2."""
    for name, options, ratio in (("dc_asgd", {"strength": 1.0}, 4), ("pipedream", {}, 2)):
        errors = [error_of_gradient(methods.build(name, **options), rate) for rate in (2e-3, 1e-3)]
        assert errors[0] / errors[1] == pytest.approx(ratio, rel=0.05), name


def test_adaptive_strength_of_a_constant_gradient():
    """g = 0.5 at every step: s = 0.25 (1 - 0.95^c) after c microbatches, gap 3 steps of what was really used."""
    walked, _ = path(methods.build("dc_asgd_adaptive"), 30, lambda w, t: 0.5 * w, rate=0.01, stages=2)
    w = [1.0]
    for t in range(30):
        strength = 2 / math.sqrt(0.25 * (1 - 0.95 ** (t + 1)) + 1e-7)
        w.append(w[-1] - 0.01 * (0.5 + strength * 0.25 * (w[-1] - w[max(t - 3, 0)])))
    assert walked[:, 0].tolist() == pytest.approx(w, abs=1e-12)


def train(method, optimizer):
    fast = emulator(dense_net().float(), torch.zeros(2, 5), [0, 1, 2, 3], method, optimizer, 2)
    return [fast.step(data, loss, 0.02) for data in minibatches((5,), 2, 15, torch.float32)] + fast.flat_weights()


def test_without_strength_it_is_pipedream():
    kinds = methods.build("dc_asgd", strength=0.0), methods.build("pipedream")
    ends = [train(how, momentum(0.9)) for how in kinds]
    assert same(*ends)


def test_a_gap_of_d_usual_steps_divides_by_one_and_d():
    """A constant gradient, plain SGD: each stage ends at equal steps, so that its gap is d = 3 and 1 of them."""
    walked, _ = path(methods.build("gap_aware", memory=0.5), 80, lambda w, t: 0.5 * w, rate=0.01, stages=2)
    steps = (walked[-2] - walked[-1]).tolist()
    assert steps == pytest.approx([0.005 / 4, 0.005 / 2], rel=1e-6)


def test_without_a_threshold_it_is_hogwild():
    ends = [
        train(how, momentum(0.9)) for how in (methods.build("ringmaster", threshold=None), methods.build("hogwild"))
    ]
    assert same(*ends)


def test_threshold_one_makes_the_updates_without_a_delay_only():
    source = bound("hogwild", 3, 1)
    walked, _ = path(methods.build("ringmaster", threshold=1), 40, lambda w, t: w, rate=0.01, stages=3)
    moved = (walked[1:] != walked[:-1]).tolist()
    expected = [[min(d, t) == 0 for d in source.delays_at(t)[0]] for t in range(40)]
    assert moved == expected and any(map(any, expected[1:])) and not all(map(all, expected))


def test_amdp_reads_by_hand():
    """P = 4: two microbatches of a minibatch read the step before, but at the last stage; after the warm-up of 2 steps
    none reads what was before it."""
    method = bound("amdp", 4, 3, warmup_steps=2)
    for step, n in itertools.product(range(6), range(3)):
        old = step - 1 if n < 2 and step > 2 else step
        assert [read.version for read in method.forward(step, n)] == [old, old, old, step]
        assert [read.version for read in method.backward(step, n)] == [step] * 4
    with pytest.raises(
        UserError, match=r"P/2 = 4 microbatches .*N = 3; take pipeline.microbatches=4 .*stages=7 or fewer"
    ):
        bound("amdp", 8, 3)


def test_first_steps_of_nadam_by_hand():
    """Gradient 1, beta1 = 0.99, beta2 = 0.9, no decay: m and v by hand, the look-ahead from their page."""
    make = optimizers.optimizer("nadamw", betas=(0.99, 0.9), eps=0.0)
    walked, _ = path(methods.build("nesterov"), 2, lambda w, t: w, rate=0.01, optimizer=make)
    mu = [0.99 * (1 - 0.5 * 0.96 ** (0.004 * k)) for k in (1, 2, 3)]
    first = (1 - mu[0]) / (1 - mu[0]) + mu[1] / (1 - mu[0] * mu[1]) * 0.01  # m_1 = 0.01, v_hat = 1
    second = (1 - mu[1]) / (1 - mu[0] * mu[1]) + mu[2] / (1 - mu[0] * mu[1] * mu[2]) * 0.0199
    assert walked[:, 0].tolist() == pytest.approx([1, 1 - 0.01 * first, 1 - 0.01 * (first + second)], abs=1e-8)


def test_nesterov_wants_nadam_and_gives_stages_their_momentum():
    with pytest.raises(UserError, match="nesterov with the optimizer SGD.*take optimizer=nadamw"):
        train(methods.build("nesterov"), momentum(0.9))
    make = optimizers.optimizer("nadamw", betas=(0.99, 0.98))
    fast = emulator(
        dense_net(), torch.zeros(2, 5).double(), [0, 1, 2, 3], methods.build("nesterov", by_stage=True), make, 2
    )
    assert [group["betas"] for group in fast.optimizer.param_groups] == [
        (0.9 + 0.09 * k / 4, 0.98) for k in (3, 2, 1, 0)
    ]
