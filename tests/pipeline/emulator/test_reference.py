"""The emulator against a slow reference that keeps every version, weight for weight, from the first step."""

import pytest
import torch

from tests.pipeline.reference import SGD, Adam, Trainer, dense_gradient
from tests.pipeline.toys import (
    METHODS,
    cut,
    dense_net,
    emulator,
    keyed_mask,
    loss,
    minibatches,
    mixed_net,
    named_units,
    rule,
)
from tests.pipeline.two_weights import Net

STEPS = 40
SEED = 11
CUTS = {
    (4, 1): [0],
    (4, 2): [0, 3],
    (4, 4): [0, 1, 2, 3],
    (6, 2): [0, 2],
    (6, 3): [0, 1, 4],
    (6, 6): [0, 1, 2, 3, 4, 5],
}
# Adam's eps is not tiny: the bias of a convolution before a BatchNorm has gradient 0, computed as a rounding
# of 1e-17, which Adam would divide by its own size.
OPTIMIZERS = {
    "momentum": SGD(0.9, weight_decay=0.01),
    "nesterov": SGD(0.8, nesterov=True, weight_decay=0.02),
    "adam": Adam((0.8, 0.95), 1e-5, weight_decay=0.05),
    "adamw": Adam((0.9, 0.98), 1e-5, weight_decay=0.1, decoupled=True),
}


def two_weight_gradient(net):
    """The gradient of one microbatch by two-weight layers, and the `Net` that holds the statistics."""
    walker = Net(net)

    def gradient(forward, backward, microbatch, step, n):
        walker.mask = lambda name, call, p, values: keyed_mask(SEED, step, n, name, call, p, values)
        leaves = {name: w.requires_grad_() for name, w in forward.items()}
        value = loss(lambda x: walker(leaves, backward, x), microbatch)
        value.backward()
        return value.detach(), {name: w.grad for name, w in leaves.items()}

    return gradient, walker


def against_reference(net, gradient, shape, described, boundaries, optimizer, rate, clip=None):
    """Runs both; returns the largest difference of weights or losses seen, and the reference."""
    weights = {name: w.detach().clone() for name, w in net.named_parameters()}
    slow = Trainer(weights, cut(named_units(net), boundaries), described, optimizer, gradient, clip)
    N = described.microbatches
    fast = emulator(
        net,
        torch.zeros(2, *shape, dtype=torch.float64),
        boundaries,
        described,
        optimizer,
        N,
        seed=SEED,
        clip=clip,
    )
    worst = 0.0
    for step, minibatch in enumerate(minibatches(shape, N, STEPS)):
        alpha = rate * (1 + 0.5 * (step % 3))
        got, expected = float(fast.step(minibatch, loss, alpha)), slow.step(minibatch, alpha)
        worst = max(worst, abs(got - expected) / max(1.0, abs(expected)))
        now = slow.weights()
        for s, flat in enumerate(fast.flat_weights()):
            whole = torch.cat([now[name].flatten() for name in slow.stages[s]])
            worst = max(worst, float((flat - whole).abs().max()))
        rates = [alpha * described.rate_factor(step, s) for s in range(described.stages)]
        assert fast.rates == pytest.approx(rates, rel=1e-14)
    assert fast.version == STEPS
    return worst, slow


@pytest.mark.parametrize("slots, stages, N", [("duplex", 4, 3), ("duplex", 2, 1), ("alternating", 4, 2)])
@pytest.mark.parametrize("label", METHODS)
def test_linear_layers_by_hand(label, slots, stages, N):
    described = rule(label, stages, N, slots)
    worst, slow = against_reference(
        dense_net(), dense_gradient, (5,), described, CUTS[4, stages], OPTIMIZERS["momentum"], 0.02
    )
    assert worst < 1e-10
    moved = max(float((slow.versions[-1][k] - slow.versions[0][k]).abs().max()) for k in slow.delta)
    assert moved > 1e-2  # nothing is compared if nothing moves


@pytest.mark.parametrize(
    "slots, stages, N, optimizer",
    [
        ("duplex", 6, 2, "momentum"),
        ("duplex", 3, 4, "adamw"),
        ("alternating", 6, 3, "nesterov"),
        ("duplex", 2, 1, "adam"),
    ],
)
@pytest.mark.parametrize("label", METHODS)
def test_convolution_batchnorm_dropout_linear(label, slots, stages, N, optimizer):
    net = mixed_net()
    gradient, walker = two_weight_gradient(net)
    described = rule(label, stages, N, slots)
    rate = 0.02 if optimizer in ("momentum", "nesterov") else 0.004
    worst, _ = against_reference(net, gradient, (2, 6, 6), described, CUTS[6, stages], OPTIMIZERS[optimizer], rate)
    assert worst < 1e-10
    for name, (mean, var) in walker.statistics.items():
        module = net.get_submodule(name)
        torch.testing.assert_close(module.running_mean, mean, rtol=0, atol=1e-10)
        torch.testing.assert_close(module.running_var, var, rtol=0, atol=1e-10)


@pytest.mark.parametrize("scope", ["stage", "global"])
@pytest.mark.parametrize("label", ["gpipe", "t1+t2+t3"])
def test_clipping(label, scope):
    """Clipped gradients, by stage and over all stages; the limit is low enough to bind at most steps."""
    described = rule(label, 4, 3, "duplex")
    # torch adds 1e-6 to the norm that it divides by: with norms above 0.05 that is worth 2e-5 of an update.
    worst, _ = against_reference(
        dense_net(), dense_gradient, (5,), described, CUTS[4, 4], SGD(0.5), 0.02, clip=(scope, 0.05)
    )
    assert worst < 2e-6
    free, _ = against_reference(dense_net(), dense_gradient, (5,), described, CUTS[4, 4], SGD(0.5), 0.02)
    assert free < 1e-10


def test_methods_differ_in_this_comparison():
    """The runs above can tell the methods apart: each ends at other weights than every other."""
    ends = {}
    for label in METHODS:
        net = dense_net()
        described = rule(label, 4, 3, "duplex")
        _, slow = against_reference(net, dense_gradient, (5,), described, CUTS[4, 4], OPTIMIZERS["momentum"], 0.02)
        ends[label] = torch.cat([w.flatten() for w in slow.weights().values()])
    labels = list(ends)
    for i, a in enumerate(labels):
        for b in labels[i + 1 :]:
            assert (ends[a] - ends[b]).abs().max() > 1e-5, (a, b)


def test_reference_reads_grow_to_the_delay():
    """Past the fill the versions that the reference read are L_s/N behind, averaged over the microbatches."""
    described = rule("async", 4, 3, "duplex")
    _, slow = against_reference(dense_net(), dense_gradient, (5,), described, CUTS[4, 4], OPTIMIZERS["momentum"], 0.02)
    for s in range(4):
        late = [t - version for t, _, stage, version in slow.read if stage == s and t in (20, 21, 22)]
        assert sum(late) / len(late) == pytest.approx((2 * (4 - s) - 1) / 3)
