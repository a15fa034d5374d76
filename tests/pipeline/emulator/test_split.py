"""Split stages: P of them with split = k are k P stages, each part of a stage's weights with versions of its own."""

import copy
import io
from functools import partial

import pytest
import torch
from torch import nn

from pipemare_exp.errors import UserError
from tests.pipeline.probes import Noting, Prescribed, one
from tests.pipeline.reference import SGD, Adam, Rule, Trainer, dense_gradient
from tests.pipeline.toys import METHODS, emulator, loss, minibatches, mixed_net, named_units, rule, same

STEPS = 40


def square_net():
    """Linear(8, 8) with bias, three of them: 72 float64 numbers a unit, without padding in the flat buffer."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)).double()


def parts(names, weights, split):
    """A stage's weights, flattened one after the other, in `split` equal parts."""
    flat = torch.cat([weights[name].flatten() for name in names])
    assert len(flat) % split == 0
    return flat.chunk(split)


def assembled(stages, shapes, chunks, split):
    """The parameters again, from {"stage.part": numbers}."""
    weights = {}
    for s, names in enumerate(stages):
        flat = torch.cat([chunks[f"{s}.{k}"] for k in range(split)])
        sizes = [shapes[name].numel() for name in names]
        weights |= {name: part.view(shapes[name]) for name, part in zip(names, flat.split(sizes), strict=True)}
    return weights


@pytest.mark.parametrize(
    "boundaries, split, N, slots",
    [([0, 1, 2], 2, 1, "duplex"), ([0, 1], 2, 3, "duplex"), ([0, 1, 2], 3, 2, "alternating"), ([0], 2, 1, "duplex")],
    ids=str,
)
@pytest.mark.parametrize("label", METHODS)
def test_against_the_reference(label, boundaries, split, N, slots):
    """The reference is one of k P stages, whose "parameters" are the parts."""
    net, optimizer = square_net(), Adam((0.9, 0.98), 1e-5, weight_decay=0.05) if N == 2 else SGD(0.9, weight_decay=0.01)
    units = named_units(net)
    ends = [*boundaries[1:], len(units)]
    stages = [[name for unit in units[a:b] for name in unit] for a, b in zip(boundaries, ends, strict=True)]
    start = {name: w.detach().clone() for name, w in net.named_parameters()}
    shapes = {name: w.shape for name, w in start.items()}

    def cut(weights):
        flat = [parts(names, weights, split) for names in stages]
        return {f"{s}.{k}": chunk for s, chunks in enumerate(flat) for k, chunk in enumerate(chunks)}

    def gradient(forward, backward, microbatch, step, n):
        pair = (assembled(stages, shapes, chunks, split) for chunks in (forward, backward))
        value, grads = dense_gradient(*pair, microbatch, step, n)
        return value, cut(grads)

    described = rule(label, len(stages) * split, N, slots)
    names = [[f"{s}.{k}"] for s in range(len(stages)) for k in range(split)]
    slow = Trainer(cut(start), names, described, optimizer, gradient)
    fast = emulator(net, torch.zeros(2, 8).double(), boundaries, described, optimizer, N, split=split)
    rate = 0.003 if N == 2 else 0.02
    for step, minibatch in enumerate(minibatches((8,), N, STEPS)):
        got, expected = float(fast.step(minibatch, loss, rate)), slow.step(minibatch, rate)
        assert abs(got - expected) < 1e-10
        now = torch.cat(list(slow.weights().values()))
        torch.testing.assert_close(torch.cat(fast.flat_weights()), now, rtol=0, atol=1e-10)
        factors = [described.rate_factor(step, s) for s in range(described.stages)]
        assert fast.rates == pytest.approx([rate * factor for factor in factors], rel=1e-14)
    moved = max(float((slow.weights()[key] - w).abs().max()) for key, w in cut(start).items())
    assert moved > 1e-2


class Wide(Noting):
    """Notes all numbers of its weight."""

    def __init__(self, rows, columns):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(rows, columns, dtype=torch.float64))


class Column(nn.Module):
    def __init__(self, *shapes):
        super().__init__()
        self.stages = nn.ModuleList(Wide(*shape) for shape in shapes)

    def forward(self, x):
        for module in self.stages:
            x = module(x)
        return x


def versions_read(shapes, described, split, steps):
    """[stage] of tensors [pass, number of the weight]: forward, backward; version k of every weight is k."""
    net, N = Column(*shapes), described.microbatches
    x = torch.zeros(1, dtype=torch.float64)
    fast = emulator(net, x, range(len(shapes)), described, partial(Prescribed, path=float), N, split=split)
    for module in net.stages:
        for seen in module.seen.values():
            seen.clear()
    for _ in range(steps):
        fast.step([x] * N, one, 1.0)
    return [[torch.stack(module.seen[kind]) for module in net.stages] for kind in ("forward", "backward")]


@pytest.mark.parametrize("slots", ["duplex", "alternating"])
@pytest.mark.parametrize("label", ["async", "pipedream"])
@pytest.mark.parametrize("stages, split, N", [(3, 2, 1), (2, 2, 3), (2, 4, 2), (1, 3, 1)])
def test_each_part_reads_its_own_version(stages, split, N, label, slots):
    """Part k of stage s is stage k + split s of a pipeline of split P stages."""
    described = Rule("pipemare" if label == "async" else label, stages * split, N, slots)
    size = 24
    steps = 2 * stages * split // N + 3
    forward, backward = versions_read([(4, 6)] * stages, described, split, steps)
    for s in range(stages):
        for place in range(steps * N):
            step, n = divmod(place, N)
            expected = [described.forward_version(step, n, split * s + k) for k in range(split)]
            assert forward[s][place].view(split, size // split).tolist() == [[v] * (size // split) for v in expected]
            late = forward[s][place] if label == "pipedream" else torch.full((size,), float(step)).double()
            assert torch.equal(backward[s][place], late)
    late = steps - 1 - forward[0][-1]
    assert len(late.unique()) == split or slots == "alternating" or N > 1  # they do differ


@pytest.mark.parametrize("shape", [(5, 7), (3, 3), (1, 17), (1, 9), (1, 2)], ids=str)
def test_parts_of_any_size(shape):
    """The first numbers in one part, the rest in the other, nearly as many: no part of a split is without weights."""
    described = Rule("pipemare", 4, 1)
    forward, _ = versions_read([shape, (4, 4)], described, 2, 14)
    numel = shape[0] * shape[1]
    last = 13 - forward[0][-1]  # delays, by number of the weight
    assert sorted(last.unique().tolist()) == [5.0, 7.0]
    first = int((last == 7).sum())
    assert last.tolist() == [7.0] * first + [5.0] * (numel - first)
    assert abs(2 * first - numel) <= 8  # up to the padding of a parameter to 64 bytes


OPTIMIZERS = {
    "nesterov": SGD(0.9, nesterov=True, weight_decay=0.01),
    "adamw": Adam((0.9, 0.98), weight_decay=0.1, decoupled=True),
}


def build(label, split, optimizer="nesterov", seed=0, boundaries=(0, 1, 4)):
    net = mixed_net(torch.float32, seed)
    how = rule(label, len(boundaries) * split, 3, "duplex", k=6, warmup=3)
    return net, emulator(net, torch.zeros(2, 2, 6, 6), boundaries, how, OPTIMIZERS[optimizer], 3, seed=3, split=split)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("split", [2, 3])
def test_without_delays_a_split_changes_nothing(split, optimizer):
    """GPipe, to the last bit: weights, statistics, losses, and what evaluation sees."""
    data = list(minibatches((2, 6, 6), 3, 6, torch.float32))
    (whole_net, whole), (net, fast) = build("gpipe", 1, optimizer), build("gpipe", split, optimizer)
    for minibatch in data:
        assert torch.equal(whole.step(minibatch, loss, 0.02), fast.step(minibatch, loss, 0.02))
    assert same(dict(whole_net.state_dict()), dict(net.state_dict()))
    assert torch.equal(torch.cat(whole.flat_weights()), torch.cat(fast.flat_weights()))
    with fast.evaluation() as model, whole.evaluation() as other:
        assert torch.equal(model(data[0][0][0]), other(data[0][0][0]))


def test_with_delays_it_changes_the_training():
    ends = []
    for split in (1, 2):
        _, fast = build("async", split)
        for minibatch in minibatches((2, 6, 6), 3, 6, torch.float32):
            fast.step(minibatch, loss, 0.02)
        ends.append(torch.cat(fast.flat_weights()))
    assert (ends[0] - ends[1]).abs().max() > 1e-4


def everything(net, fast):
    return copy.deepcopy({"model": dict(net.state_dict()), "emulator": fast.state_dict(), "flat": fast.flat_weights()})


@pytest.mark.parametrize("label", ["gpipe", "pipedream", "t1+t2+t3"])
def test_resume_bit_for_bit(label):
    data = list(minibatches((2, 6, 6), 3, 9, torch.float32))
    net, fast = build(label, 2)
    saved = {}
    for step, minibatch in enumerate(data):
        if step in (1, 4, 6):
            saved[step] = io.BytesIO()
            torch.save(fast.state_dict(), saved[step])
        fast.step(minibatch, loss, 0.02)
    for k, file in saved.items():
        file.seek(0)
        other_net, other = build(label, 2, seed=9)
        other.step(data[0], loss, 0.02)
        other.load_state_dict(torch.load(file, weights_only=True))
        for minibatch in data[k:]:
            other.step(minibatch, loss, 0.02)
        assert same(everything(other_net, other), everything(net, fast)), k


@pytest.mark.parametrize("split, other", [(2, 1), (1, 2), (2, 3)])
@pytest.mark.parametrize("label", ["gpipe", "t2"])
def test_state_of_another_split_is_refused(label, split, other):
    _, fast = build(label, split)
    net, there = build(label, other, seed=5)
    before = everything(net, there)
    with pytest.raises(UserError, match="stages|split"):
        there.load_state_dict(fast.state_dict())
    assert same(before, everything(net, there))


@pytest.mark.parametrize("split", [0, -2])
def test_refusals(split):
    with pytest.raises(UserError, match=rf"split={split}\b.*at least 1"):
        emulator(mixed_net(), torch.zeros(2, 2, 6, 6).double(), [0], Rule("gpipe", 1, 1), SGD(), 1, split=split)


def test_memory_is_that_of_so_many_stages():
    """Each part keeps ceil(L/N) past versions by its own L; no padding in these sizes."""
    net = nn.Sequential(*(nn.Linear(16, 16) for _ in range(3)))
    fast = emulator(net, torch.zeros(2, 16), range(3), Rule("pipemare", 6, 2, decay=0.2), SGD(), 2, split=2)
    size = 4 * (16 * 16 + 16) // 2
    depths = [-(-(2 * (6 - s) - 1) // 2) for s in range(6)]
    held = fast.memory()
    assert held["history"] == sum(size * (depth + 1) for depth in depths)
    assert (held["weights"], held["gradients"], held["buffers"]) == (6 * size, 6 * size, 6 * size)
