"""The version that each pass reads, told by the weights: version k of every weight is the number k."""

import random
from functools import partial

import pytest
import torch
from torch import nn

from pipemare_exp import methods
from tests.pipeline.probes import Chain, Prescribed, one
from tests.pipeline.reference import Rule
from tests.pipeline.toys import emulator, rule

RANDOM = random.Random(7)
SHAPES = [(1, 1), (7, 1), (2, 5)] + [(RANDOM.randint(2, 8), RANDOM.randint(1, 6)) for _ in range(5)]
ZERO = torch.zeros(1, dtype=torch.float64)


def run(described, steps, empty=()):
    """What a chain whose version k is k read: {(step, n): [stage]}, for forward and for backward."""
    chain = Chain(described.stages)
    fast = emulator(
        chain,
        ZERO,
        range(described.stages),
        described,
        partial(Prescribed, path=float),
        described.microbatches,
    )
    chain.clear()
    order = []
    for step in range(steps):
        assert fast.version == step
        fast.step([None if (step, n) in empty else ZERO for n in range(described.microbatches)], one, 1.0)
        order += [(step, n) for n in range(described.microbatches) if (step, n) not in empty]
    return tuple(dict(zip(order, chain.read(kind).T.tolist(), strict=True)) for kind in ("forward", "backward"))


@pytest.mark.parametrize("slots", ["duplex", "alternating"])
@pytest.mark.parametrize("stages, N", SHAPES)
def test_delay_read_back(stages, N, slots):
    described = rule("async", stages, N, slots)
    steps = 2 * stages // N + 4
    forward, backward = run(described, steps)
    for (step, n), versions in forward.items():
        assert versions == [described.forward_version(step, n, s) for s in range(stages)]
        assert backward[step, n] == [step] * stages
    late = [[step - v for v in forward[step, n]] for step in (steps - 2, steps - 1) for n in range(N)]
    for s in range(stages):  # past the fill the mean delay is L_s/N, so it is not zero by aliasing
        assert sum(delays[s] for delays in late) / len(late) == pytest.approx(described.between(s) / N)


@pytest.mark.parametrize("label", ["gpipe", "pipedream"])
@pytest.mark.parametrize("slots", ["duplex", "alternating"])
def test_backward_reads_what_forward_read(label, slots):
    described = rule(label, 5, 3, slots)
    forward, backward = run(described, 8)
    assert forward == backward
    for (step, n), versions in forward.items():
        assert versions == [described.forward_version(step, n, s) for s in range(5)]


@pytest.mark.parametrize("label", ["async", "pipedream"])
def test_an_empty_microbatch_keeps_its_slot(label):
    described = rule(label, 4, 3, "duplex")
    empty = {(0, 0), (2, 1), (3, 2), (5, 0), (5, 1)}
    with_gaps, _ = run(described, 7, empty)
    without, _ = run(described, 7)
    assert with_gaps == {place: versions for place, versions in without.items() if place not in empty}
    assert len(with_gaps) == 21 - len(empty)


@pytest.mark.parametrize("slots", ["duplex", "alternating"])
@pytest.mark.parametrize("kind", ["pipemare", "pipedream"])
def test_switch_from_synchronous_to_asynchronous(kind, slots):
    """Nothing before version M is read, and the delay grows from 0 to L_s/N without ever falling."""
    stages, N, M = 6, 2, 5
    chain = Chain(stages)
    fast = emulator(
        chain,
        ZERO,
        range(stages),
        methods.build(kind, warmup_steps=M),
        partial(Prescribed, path=float),
        N,
        slots=slots,
    )
    chain.clear()
    steps = M + 10
    for _ in range(steps):
        fast.step([ZERO] * N, one, 1.0)
    described = Rule(kind, stages, N, slots)
    ages = torch.arange(steps).repeat_interleave(N) - chain.read("forward")
    assert (ages[:, : M * N] == 0).all()
    assert (chain.read("forward")[:, M * N :] >= M).all()
    mean = ages.reshape(stages, steps, N).mean(2)
    assert (mean[:, M] == 0).all()  # the pipeline refills: at first everything reads M
    assert (mean.diff(dim=1) >= 0).all()
    assert mean[:, -1].tolist() == pytest.approx([described.between(s) / N for s in range(stages)])


def ring_net(stages):
    return nn.Sequential(*(nn.Linear(16, 16, bias=False) if s % 2 == 0 else nn.Linear(16, 16) for s in range(stages)))


@pytest.mark.parametrize("label", ["gpipe", "pipedream", "async", "t1+t2"])
@pytest.mark.parametrize("slots", ["duplex", "alternating"])
@pytest.mark.parametrize("stages, N", [(1, 1), (4, 1), (5, 3), (3, 8)])
def test_no_more_versions_than_needed(stages, N, slots, label):
    """ceil(L/N) past versions and the current one of each stage that has a delay; float32, 4 bytes."""
    net = ring_net(stages)
    described = rule(label, stages, N, slots)
    fast = emulator(net, torch.zeros(2, 16), range(stages), described, partial(torch.optim.SGD, lr=0.0), N)
    for _ in range(3):
        fast.step([torch.ones(2, 16)] * N, lambda m, x: m(x).sum(), 0.0)
    sizes = [sum(p.numel() for p in module.parameters()) for module in net]
    needs = [-(-described.between(s) // N) for s in range(stages)]
    ring = sum((need + 1) * size for need, size in zip(needs, sizes, strict=True) if need) * (label != "gpipe")
    delta = sum(size for need, size in zip(needs, sizes, strict=True) if need) * (label == "t1+t2")
    expected = {"weights": 4 * sum(sizes), "gradients": 4 * sum(sizes), "history": 4 * ring, "buffers": 4 * delta}
    held = fast.memory()
    assert {name: held[name] for name in expected} == expected
    assert sum(held.values()) == sum(expected.values())  # and nothing else is held


@pytest.mark.parametrize("label", ["gpipe", "async"])
@pytest.mark.parametrize(
    "harm",
    [
        lambda net: net.to(memory_format=torch.channels_last),
        lambda net: net.zero_grad(),
        lambda net: net.double(),
        lambda net: setattr(net[0].weight, "data", net[0].weight.detach().clone()),
    ],
    ids=["channels_last", "zero_grad", "double", "rebound"],
)
def test_a_parameter_that_left_the_buffer_is_noticed(harm, label):
    """Training must not go on with weights, or gradients, that no stage owns."""
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 2, 1)).float()
    fast = emulator(
        net, torch.zeros(1, 3, 4, 4), [0, 1], rule(label, 2, 1, "duplex"), partial(torch.optim.SGD, lr=0.0), 1
    )
    x = torch.ones(1, 3, 4, 4)
    fast.step([x], lambda m, x: m(x).sum(), 0.1)
    harm(net)
    x = x.to(net[0].weight.dtype)
    with pytest.raises(RuntimeError, match="flat buffer"):
        fast.step([x], lambda m, x: m(x).sum(), 0.1)
