"""Evaluation reads version t and leaves no trace; a checkpoint taken at any step goes on bit for bit."""

import copy
import io
import random

import pytest
import torch

from tests.pipeline.reference import SGD, Adam
from tests.pipeline.toys import METHODS, emulator, loss, minibatches, mixed_net, rule, same

BOUNDARIES = [0, 1, 4]
N = 4
EXAMPLE = torch.zeros(2, 2, 6, 6)
OPTIMIZERS = [
    SGD(0.9, nesterov=True, weight_decay=0.01),
    Adam((0.9, 0.98), weight_decay=0.1, decoupled=True),
    Adam(weight_decay=0.01),
]


def build(label, optimizer=OPTIMIZERS[0], seed=0, slots="duplex"):
    """Warm-up of 3 steps with T3, so that the filling of 2 steps lies at 3 and 4; T1 over 6 steps."""
    net = mixed_net(torch.float32, seed)
    return net, emulator(net, EXAMPLE, BOUNDARIES, rule(label, 3, N, slots, k=6, warmup=3), optimizer, N, seed=3)


def everything(net, fast):
    return copy.deepcopy(
        {
            "model": dict(net.state_dict()),
            "emulator": fast.state_dict(),
            "step": fast.version,
            "flat": fast.flat_weights(),
        }
    )


def train(fast, data, start=0):
    return [fast.step(minibatch, loss, 0.02 + 0.01 * (step % 3)) for step, minibatch in enumerate(data, start)]


@pytest.mark.parametrize("label", METHODS)
def test_evaluation_leaves_no_trace(label):
    data = list(minibatches((2, 6, 6), N, 9, torch.float32))
    net, fast = build(label)
    undisturbed_net, undisturbed = build(label)
    for model in (net, undisturbed_net):
        model[1].eval()  # somebody froze this BatchNorm; it has to stay frozen
    modes = [module.training for module in net.modules()]
    for step, minibatch in enumerate(data):
        before, draws = everything(net, fast), torch.get_rng_state()
        with fast.evaluation() as model:
            assert model is net and not any(module.training for module in net.modules())
            assert not torch.is_grad_enabled()
            shown = torch.cat([p.flatten() for p in net.parameters()])
            assert torch.equal(shown, torch.cat(fast.flat_weights()))
            out = model(data[0][0][0])
            assert torch.equal(out, model(data[0][0][0]))  # no dropout, no statistics
        assert [module.training for module in net.modules()] == modes
        assert torch.is_grad_enabled()
        assert same(before, everything(net, fast))
        assert torch.equal(draws, torch.get_rng_state())
        assert torch.equal(fast.step(minibatch, loss, 0.02), undisturbed.step(minibatch, loss, 0.02)), step
    assert same(everything(net, fast), everything(undisturbed_net, undisturbed))


def test_evaluation_that_fails_leaves_no_trace():
    net, fast = build("t1+t2+t3")
    train(fast, minibatches((2, 6, 6), N, 5, torch.float32))
    before = everything(net, fast)
    with pytest.raises(ZeroDivisionError), fast.evaluation():
        raise ZeroDivisionError
    assert same(before, everything(net, fast)) and all(module.training for module in net.modules())


def test_evaluation_shows_the_newest_version():
    """Not the stale weights of the last forward: what it shows is new after every step."""
    net, fast = build("async", SGD())
    seen = []
    for minibatch in minibatches((2, 6, 6), N, 6, torch.float32):
        fast.step(minibatch, loss, 0.05)
        with fast.evaluation():
            seen.append(net[0].weight.detach().clone())
    assert all(not torch.equal(a, b) for a, b in zip(seen, seen[1:], strict=False))
    history = fast.state_dict()["history"]
    assert history["current"] == 6
    assert any(torch.isin(seen[-1].flatten(), kept.flatten()).all() for kept in history["kept"])


@pytest.mark.parametrize("slots", ["duplex", "alternating"])
@pytest.mark.parametrize("label", METHODS)
def test_resume_bit_for_bit(label, slots):
    """The state after k steps, through a file, in a new emulator around other weights: the same run."""
    steps = 11
    data = list(minibatches((2, 6, 6), N, steps, torch.float32))
    draw = random.Random(f"{label}{slots}")
    optimizer = draw.choice(OPTIMIZERS)
    net, fast = build(label, optimizer, slots=slots)
    saved = {}
    stops = {1, 4, *draw.sample(range(2, steps), 2)}  # 1: in the fill; 4: in the fill after the warm-up
    losses = []
    for step, minibatch in enumerate(data):
        if step in stops:
            saved[step] = io.BytesIO()
            torch.save(fast.state_dict(), saved[step])
        losses += train(fast, [minibatch], step)
    end = everything(net, fast)
    for k, file in saved.items():
        file.seek(0)
        state = torch.load(file, weights_only=True)
        other_net, other = build(label, optimizer, seed=99, slots=slots)
        train(other, data[:2])  # it has a past of its own
        other.load_state_dict(state)
        assert other.version == k
        torch.manual_seed(k)
        again = train(other, data[k:], k)
        assert all(torch.equal(a, b) for a, b in zip(again, losses[k:], strict=True)), k
        assert same(everything(other_net, other), end), k


def test_state_of_another_cut_is_refused():
    _, fast = build("t2")
    net = mixed_net(torch.float32)
    other = emulator(net, EXAMPLE, [0, 3], rule("t2", 2, N, "duplex"), OPTIMIZERS[0], N)
    before = everything(net, other)
    with pytest.raises(ValueError, match="3.*2"):
        other.load_state_dict(fast.state_dict())
    assert same(before, everything(net, other))


def test_not_finite_is_seen():
    net, fast = build("async")
    data = list(minibatches((2, 6, 6), N, 2, torch.float32))
    train(fast, data)
    assert not any(fast.non_finite().values())
    fast.step(data[0], lambda model, microbatch: loss(model, microbatch) * float("inf"), 0.01)
    assert fast.non_finite()["weights"] == fast.flat.weights.count_nonzero()  # the padding stays zero
