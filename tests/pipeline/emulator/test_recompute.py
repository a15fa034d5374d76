"""Recomputation in the emulator against the slow reference: weights, statistics, masks, from the first step."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F

from tests.pipeline.emulator.recomputing import (
    Pieced,
    RecomputingTrainer,
    Travelling,
    dense_gradient_recomputed,
    segmented_gradient,
)
from tests.pipeline.reference import SGD, Adam
from tests.pipeline.toys import METHODS, cut, dense_net, emulator, loss, minibatches, mixed_net, named_units, rule
from tests.pipeline.two_weights import Net

STEPS = 40
SEED = 11
MOMENTUM = SGD(0.9, weight_decay=0.01)
ADAMW = Adam((0.9, 0.98), 1e-5, weight_decay=0.1, decoupled=True)


def cut_at(units: int, stages: int) -> list[int]:
    """The first unit of each stage: uneven cuts where there are fewer stages than units."""
    return {(4, 2): [0, 3], (4, 3): [0, 1, 3], (6, 2): [0, 2], (6, 3): [0, 1, 4], (6, 5): [0, 1, 2, 3, 5]}.get(
        (units, stages), list(range(stages))
    )


def compare(net, gradient, data, share, example, described, boundaries, segment, optimizer, rate):
    """Runs both; returns the largest difference of weights or losses seen, and the reference."""
    weights = {name: w.detach().clone() for name, w in net.named_parameters()}
    stages = cut(named_units(net), boundaries)
    slow = RecomputingTrainer(weights, stages, described, optimizer, gradient, segment)
    fast = emulator(net, example, boundaries, described, optimizer, described.microbatches, seed=SEED, segment=segment)
    worst = 0.0
    for step, minibatch in enumerate(data):
        alpha = rate * (1 + 0.5 * (step % 3))
        got, expected = float(fast.step(minibatch, share, alpha)), slow.step(minibatch, alpha)
        worst = max(worst, abs(got - expected) / max(1.0, abs(expected)))
        now = slow.weights()
        for s, flat in enumerate(fast.flat_weights()):
            whole = torch.cat([now[name].flatten() for name in slow.stages[s]])
            worst = max(worst, float((flat - whole).abs().max()))
    assert fast.version == STEPS
    assert math.isfinite(worst)
    return worst, slow


def run_dense(label, stages, N, segment, optimizer=MOMENTUM):
    net = Pieced(*dense_net())
    boundaries = cut_at(4, stages)
    gradient = dense_gradient_recomputed(boundaries[::segment])
    data = minibatches((5,), N, STEPS)
    example = torch.zeros(2, 5, dtype=torch.float64)
    return compare(
        net, gradient, data, loss, example, rule(label, stages, N, "duplex"), boundaries, segment, optimizer, 0.02
    )


@pytest.mark.parametrize("stages, N, segment", [(4, 1, 2), (4, 3, 3), (4, 2, 1), (3, 1, 2), (2, 2, 2)])
@pytest.mark.parametrize("label", METHODS)
def test_linear_layers_by_hand(label, stages, N, segment):
    worst, slow = run_dense(label, stages, N, segment)
    assert worst < 1e-10
    moved = max(float((slow.versions[-1][k] - slow.versions[0][k]).abs().max()) for k in slow.delta)
    assert moved > 1e-2  # nothing is compared if nothing moves


@pytest.mark.parametrize(
    "stages, N, segment, optimizer",
    [(6, 1, 2, "momentum"), (6, 2, 4, "momentum"), (3, 3, 2, "adamw"), (5, 1, 3, "adamw")],
)
@pytest.mark.parametrize("label", ["gpipe", "pipedream", "async", "t2", "t1+t2+t3"])
def test_convolution_batchnorm_dropout_linear(label, stages, N, segment, optimizer):
    net = Pieced(*mixed_net())
    boundaries = cut_at(6, stages)
    walker = Net(net)
    children = [name for name, _ in net.named_children()]
    heads = [children.index(named_units(net)[unit][0].split(".")[0]) for unit in boundaries[::segment]]
    parts = [
        [lambda state, name=name: (walker.run(net.get_submodule(name), name, state[0]),) for name in children[a:b]]
        for a, b in zip(heads, [*heads[1:], len(children)], strict=True)
    ]
    gradient = segmented_gradient(walker, parts, loss, SEED)
    data = minibatches((2, 6, 6), N, STEPS)
    example = torch.zeros(2, 2, 6, 6, dtype=torch.float64)
    described = rule(label, stages, N, "duplex")
    made, rate = (MOMENTUM, 0.01) if optimizer == "momentum" else (ADAMW, 0.003)
    worst, _ = compare(net, gradient, data, loss, example, described, boundaries, segment, made, rate)
    assert worst < 1e-10
    for name, (mean, var) in walker.statistics.items():  # one update a microbatch, of the first forward
        module = net.get_submodule(name)
        torch.testing.assert_close(module.running_mean, mean, rtol=0, atol=1e-10)
        torch.testing.assert_close(module.running_var, var, rtol=0, atol=1e-10)
        assert int(module.num_batches_tracked) == sum(
            m is not None for minibatch in minibatches((2, 6, 6), N, STEPS) for m in minibatch
        )


def indexed(model, microbatch):
    (x, index), labels, count = microbatch
    return F.cross_entropy(model(x, index), labels, reduction="sum") / count


def indexed_minibatches(N, steps):
    draw = torch.Generator().manual_seed(2)
    for minibatch in minibatches((5,), N, steps):
        yield [m and ((m[0], torch.randint(0, 9, (len(m[0]),), generator=draw)), *m[1:]) for m in minibatch]


class Pair(Travelling):
    """Takes one tuple, so that the unit search of toys.py can run it."""

    def forward(self, x, index=None):
        return super().forward(*x) if index is None else super().forward(x, index)


@pytest.mark.parametrize("stages, N, segment", [(6, 1, 1), (6, 2, 2), (6, 1, 4), (3, 1, 2)])
@pytest.mark.parametrize("label", ["pipedream", "async", "t1+t2+t3"])
def test_a_shortcut_through_several_segments(label, stages, N, segment):
    """Beside it travel an integer and a boolean tensor; one dropout is called in two segments."""
    net = Pair()
    boundaries = cut_at(6, stages)
    walker = Net(net)
    steps = Travelling.through(lambda name, x: walker.run(net.get_submodule(name), name, x))
    heads = boundaries[::segment]
    parts = [steps[a:b] for a, b in zip(heads, [*heads[1:], 6], strict=True)]
    gradient = segmented_gradient(walker, parts, indexed, SEED)
    data = indexed_minibatches(N, STEPS)
    example = (torch.zeros(2, 5, dtype=torch.float64), torch.zeros(2, dtype=torch.long))
    described = rule(label, stages, N, "duplex")
    worst, slow = compare(net, gradient, data, indexed, example, described, boundaries, segment, MOMENTUM, 0.01)
    assert worst < 1e-10
    assert all((slow.versions[-1][k] - slow.versions[0][k]).abs().max() > 1e-3 for k in slow.delta)


def test_segments_of_different_length_train_differently():
    """The comparisons above can tell them apart, and recomputation from none."""
    ends = {}
    for label in ("async", "t2"):
        for segment in (1, 2, 3, 4):
            _, slow = run_dense(label, 4, 1, segment)
            ends[label, segment] = torch.cat([w.flatten() for w in slow.weights().values()])
    keys = list(ends)
    for i, a in enumerate(keys):
        for b in keys[i + 1 :]:
            assert (ends[a] - ends[b]).abs().max() > 1e-5, (a, b)


def trained(label, segment, net, N=2, stages=6, steps=9):
    """float32 weights and statistics after some steps with, or without, recomputation; and the losses."""
    example = torch.zeros(2, 2, 6, 6)
    fast = emulator(
        net, example, cut_at(6, stages), rule(label, stages, N, "duplex"), ADAMW, N, seed=3, segment=segment
    )
    data = minibatches((2, 6, 6), N, steps, torch.float32)
    losses = [float(fast.step(minibatch, loss, 0.01)) for minibatch in data]
    return {name: value.clone() for name, value in net.state_dict().items()}, losses


@pytest.mark.parametrize(
    "label, segments, same",
    [
        ("gpipe", (1, 2, 4, 6), True),  # everything is w_t
        ("pipedream", (1, 2, 4, 6), True),  # the stash gives the forward's weights again
        ("async", (6,), True),  # one segment: recomputed when its first stage forwards, with the same weights
        ("t1+t2+t3", (6,), True),
        ("async", (1, 2, 4), False),
        ("t2", (1, 2, 4), False),
    ],
)
def test_equal_to_the_last_bit_where_the_weights_agree(label, segments, same):
    plain = Pieced(*mixed_net(torch.float32))
    expected, losses = trained(label, None, copy.deepcopy(plain))
    for segment in segments:
        got, again = trained(label, segment, copy.deepcopy(plain))
        assert (losses == again) == same
        assert all(torch.equal(got[name], expected[name]) for name in expected) == same, segment


@pytest.mark.parametrize("label", ["async", "t2", "t1+t2+t3"])
def test_the_segment_at_the_loss_recomputes_what_it_forwarded(label):
    """It recomputes when its first stage forwards: same weights, same masks, so the same loss, which is returned."""
    seen = []

    def noting(model, microbatch):
        value = loss(model, microbatch)
        seen.append(value.detach().clone())
        return value

    example = torch.zeros(2, 2, 6, 6, dtype=torch.float64)
    fast = emulator(Pieced(*mixed_net()), example, range(6), rule(label, 6, 1, "duplex"), SGD(), 1, segment=4)
    for (microbatch,) in minibatches((2, 6, 6), 1, 12, empty=False):
        seen.clear()
        value = fast.step([microbatch], noting, 0.02)
        first, second = seen
        assert torch.equal(first, second) and torch.equal(value.double(), first)
