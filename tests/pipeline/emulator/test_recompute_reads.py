"""What a recomputation reads, told by the weights, and the ring of estimates that it needs."""

import random
from functools import partial

import pytest
import torch
from torch import nn

from pipemare_exp.pipeline.model.units import Piece
from pipemare_exp.pipeline.schedule import orders as schedule
from pipemare_exp.pipeline.schedule import versions
from tests.pipeline.emulator.recomputing import Pieced, recompute_version, slots_before_backward
from tests.pipeline.probes import Chain, Prescribed, one
from tests.pipeline.schedule.event_simulation import by_step, simulate
from tests.pipeline.toys import emulator, rule

ZERO = torch.zeros(1, dtype=torch.float64)
RANDOM = random.Random(3)
SHAPES = [(7, 1, 3), (6, 2, 1), (5, 3, 5)] + [
    (stages, RANDOM.randint(1, 5), RANDOM.randint(1, stages)) for stages in (4, 6, 7, 8, 9)
]


class CutChain(Chain):
    def pieces(self) -> list[Piece]:
        return [Piece(str(s), (m,), lambda state, m=m: (m(state[0]),)) for s, m in enumerate(self.stages)]


def run(described, segment, steps, path=float, empty=()):
    """{(step, n): [stage]} of what forwards, recomputations and backwards read; version k of a weight is path(k)."""
    chain, N = CutChain(described.stages), described.microbatches
    for module in chain.stages:
        nn.init.constant_(module.weight, path(0))
    fast = emulator(chain, ZERO, range(described.stages), described, partial(Prescribed, path=path), N, segment=segment)
    chain.clear()
    order = [(step, n) for step in range(steps) for n in range(N) if (step, n) not in empty]
    for step in range(steps):
        fast.step([None if (step, n) in empty else ZERO for n in range(N)], one, 1.0)
    both, back = chain.read("forward").T.tolist(), chain.read("backward").T.tolist()
    assert len(both) == 2 * len(back)
    return tuple(dict(zip(order, read, strict=True)) for read in (both[::2], both[1::2], back))


@pytest.mark.parametrize("M", [0, 3])
@pytest.mark.parametrize("stages, N, segment", SHAPES)
def test_recomputation_reads_the_version_of_its_moment(stages, N, segment, M):
    """Emulator == formula == walk over the schedule == updates finished in the slots before, in a simulation."""
    described = rule("t1+t2+t3" if M else "async", stages, N, "duplex", decay=None, warmup=M)
    steps = M + 2 * stages // N + 3
    forward, recompute, backward = run(described, segment, steps)
    walked = versions.walk(schedule.pipemare(stages, N, steps, start=M, segment=segment)).recompute
    for s, stage in enumerate(simulate(stages, N, steps, "duplex", M)):
        read = by_step(stage.read_by_forward, N)
        for step, n in forward:
            assert forward[step, n][s] == read[step][n]
            assert backward[step, n][s] == step
            if step < M:
                assert walked[s][step][n] is None and recompute[step, n][s] == step
                continue
            slot = stage.backward_slot[step * N + n] - slots_before_backward(stages, segment, s)
            assert slot >= stage.forward_slot[step * N + n]
            updates = sum(done < slot for done in stage.update_slot.values())
            assert recompute[step, n][s] == updates == walked[s][step][n]
            assert updates == recompute_version(described, segment, step, n, s)
    late = [[step - v for v in recompute[step, n]] for step in (steps - 2, steps - 1) for n in range(N)]
    for s in range(stages):
        before = slots_before_backward(stages, segment, s)
        assert sum(delays[s] for delays in late) / len(late) == pytest.approx(before / N)


@pytest.mark.parametrize("label", ["gpipe", "pipedream"])
def test_synchronous_and_stashed_recomputations_read_what_the_forward_read(label):
    forward, recompute, backward = run(rule(label, 6, 2, "duplex"), 2, 9)
    assert forward == recompute == backward


def test_an_empty_microbatch_keeps_its_slot():
    described, empty = rule("async", 5, 3, "duplex"), {(0, 1), (2, 0), (4, 2), (4, 1)}
    _, with_gaps, _ = run(described, 2, 7, empty=empty)
    _, without, _ = run(described, 2, 7)
    assert with_gaps == {place: read for place, read in without.items() if place not in empty}


@pytest.mark.parametrize("warmup", [0, 4])
@pytest.mark.parametrize("stages, N, segment", [(6, 1, 2), (7, 2, 3), (5, 1, 5), (8, 3, 4)])
def test_t2_estimates_of_recomputation(stages, N, segment, warmup):
    """w_r - (tau_fwd - tau_recomp) delta_r, delta_r as it was at version r; the backward w_t - tau_fwd delta_t."""
    decay, steps = 0.3, warmup + 2 * stages // N + 6
    draw = torch.Generator().manual_seed(0)
    path = torch.randn(steps + 1, generator=draw, dtype=torch.float64).cumsum(0).tolist()
    described = rule("t1+t2+t3" if warmup else "t2", stages, N, "duplex", decay=decay, warmup=warmup)
    _, recompute, backward = run(described, segment, steps, path=lambda k: path[k])
    for s in range(stages):
        tau = (2 * (stages - s) - 1) / N
        gap = tau - slots_before_backward(stages, segment, s) / N
        gamma, delta = decay ** (1 / tau), [0.0]
        for k in range(steps):
            delta.append(gamma * delta[k] + (1 - gamma) * (path[k + 1] - path[k]))
        for step, n in recompute:
            r = recompute_version(described, segment, step, n, s)
            on = step >= warmup
            expected = path[r] - (gap * delta[r] if on else 0.0)
            assert recompute[step, n][s] == pytest.approx(expected, rel=1e-12, abs=1e-12), (step, n, s)
            expected = path[step] - (tau * delta[step] if on else 0.0)
            assert backward[step, n][s] == pytest.approx(expected, rel=1e-12, abs=1e-12), (step, n, s)


def square_net(stages):
    return Pieced(*(nn.Linear(16, 16, bias=s % 2 == 1) for s in range(stages)))


@pytest.mark.parametrize("label", ["gpipe", "pipedream", "async", "t2"])
@pytest.mark.parametrize("stages, N, segment", [(6, 1, 2), (7, 1, 3), (6, 2, 3), (9, 3, 4), (4, 1, 4), (5, 8, 2)])
def test_ring_of_estimates(stages, N, segment, label):
    """With T2, ceil((2(S-j)+1)/N) estimates at stage j of a segment, so ceil((2S-1)/N) at its first; none at the loss,
    where the recomputation reads what the forward read. float32, 4 bytes."""
    net = square_net(stages)
    fast = emulator(
        net,
        torch.zeros(2, 16),
        range(stages),
        rule(label, stages, N, "duplex"),
        partial(torch.optim.SGD, lr=0.0),
        N,
        segment=segment,
    )
    for _ in range(3):
        fast.step([torch.ones(2, 16)] * N, lambda m, x: m(x).sum(), 0.0)
    at_the_loss = (stages - 1) // segment * segment
    lengths = [-(-slots_before_backward(stages, segment, s) // N) if s < at_the_loss else 0 for s in range(stages)]
    assert all(lengths[s] == -(-(2 * segment - 1) // N) for s in range(0, at_the_loss, segment))
    sizes = [sum(p.numel() for p in module.parameters()) for module in net]
    ring = sum(length * size for length, size in zip(lengths, sizes, strict=True)) * (label == "t2")
    depths = [-(-(2 * (stages - s) - 1) // N) for s in range(stages)]
    history = sum((depth + 1) * size for depth, size in zip(depths, sizes, strict=True)) * (label != "gpipe")
    held = fast.memory()
    assert (held["rings"], held["history"]) == (4 * ring, 4 * history)
    assert held["buffers"] == 4 * sum(sizes) * (label == "t2")
