"""Which version, or estimate, each method's passes read; and what it refuses."""

import pytest
import torch

from pipemare_exp import methods
from pipemare_exp.errors import UserError
from tests.methods.binding import bound, tau

SHAPES = [
    (1, 1, "duplex"),
    (6, 1, "duplex"),
    (5, 3, "duplex"),
    (4, 9, "duplex"),
    (6, 2, "alternating"),
    (3, 5, "alternating"),
]


def expected_version(step, n, stage, stages, N, slots, M):
    L = round(tau(stages, N, slots)[stage] * N)
    return step if step < M else max(M, (step * N + n - L) // N)


@pytest.mark.parametrize("stages, N, slots", SHAPES)
@pytest.mark.parametrize(
    "name, options",
    [
        ("pipedream", {}),
        ("pipedream", {"warmup_steps": 3}),
        ("pipemare", {}),
        ("pipemare", {"decay": 0.2}),
        ("pipemare", {"decay": 0.2, "lr_rescheduling_steps": 5, "warmup_steps": 4}),
    ],
)
def test_asynchronous_reads(name, options, stages, N, slots):
    method = bound(name, stages, N, slots, **options)
    M = options.get("warmup_steps", 0)
    oldest = [0] * stages
    for step in range(M + 2 * stages + 3):
        for n in range(N):
            forward, backward = method.forward(step, n), method.backward(step, n)
            assert len(forward) == len(backward) == stages
            for s in range(stages):
                version = expected_version(step, n, s, stages, N, slots, M)
                assert version >= min(M, step)
                oldest[s] = max(oldest[s], step - version)
                assert (forward[s].version, forward[s].buffer) == (version, None)
                if name == "pipedream":
                    assert backward[s] == forward[s]
                    continue
                assert backward[s].version == step
                d = tau(stages, N, slots)[s]
                if "decay" in options and step >= M and d > 0:
                    assert backward[s].buffer == "delta" and backward[s].coef == pytest.approx(-d, rel=1e-14)
                else:
                    assert backward[s].buffer is None
    # a stage keeps as many past versions as it reads back, and no more
    assert [depth or 0 for depth in method.depths()] == oldest


@pytest.mark.parametrize("stages, N, slots", SHAPES)
def test_gpipe_reads_the_current_version(stages, N, slots):
    method = bound("gpipe", stages, N, slots)
    for step in range(5):
        for n in range(N):
            assert all(
                (read.version, read.buffer) == (step, None)
                for read in method.forward(step, n) + method.backward(step, n)
            )
    assert not any(method.depths())


def test_labels():
    """The seven names of every table."""
    pipemare = {
        "async": {},
        "t1": {"lr_rescheduling_steps": 5},
        "t2": {"decay": 0.1},
        "t1+t2": {"lr_rescheduling_steps": 5, "decay": 0.1},
        "t1+t2+t3": {"lr_rescheduling_steps": 5, "decay": 0.1, "warmup_steps": 2},
    }
    for label, options in pipemare.items():
        assert methods.build("pipemare", **options).label == label
    assert [methods.build(name).label for name in ("gpipe", "pipedream")] == ["gpipe", "pipedream"]


@pytest.mark.parametrize("decay", [0.5, 0.1353])
def test_delta_through_the_methods_own_interface(decay):
    """delta_{t+1} = gamma delta_t + (1-gamma)(w_{t+1} - w_t) with gamma = D^(1/d), stage by stage."""
    method = bound("pipemare", 3, 2, decay=decay, warmup_steps=2)
    draw = torch.Generator().manual_seed(0)
    expected = [torch.zeros(4, dtype=torch.float64) for _ in range(3)]
    for step in range(12):
        changes = [torch.randn(4, generator=draw) for _ in range(3)]
        method.updated(step, [change.clone() for change in changes])
        for s, d in enumerate(tau(3, 2, "duplex")):
            gamma = decay ** (1 / d)
            expected[s] = gamma * expected[s] + (1 - gamma) * changes[s].double()
            torch.testing.assert_close(method.buffers["delta"][s].double(), expected[s], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "name, options, says",
    [
        ("pipedream", {"decay": 0.1}, "T2"),
        ("pipemare", {"decay": 1.5}, "1.5"),
        ("pipemare", {"decay": 1.0}, "1.0"),
        ("pipemare", {"decay": -0.1}, "-0.1"),
        ("pipemare", {"decay": 0.0}, "0.0"),
        ("pipemare", {"lr_rescheduling_steps": -1}, "-1"),
        ("pipemare", {"warmup_steps": -2}, "-2"),
        ("pipedream", {"warmup_steps": -2}, "-2"),
        ("pipemar", {}, "pipemare"),
    ],
)
def test_refusals(name, options, says):
    """A UserError that names the value or the reason. PipeDream has no discrepancy for T2 to correct."""
    with pytest.raises(UserError) as error:
        methods.build(name, **options)
    assert says in str(error.value)


def test_gpipe_is_in_alternating_slots_whatever_is_asked_for():
    made = bound("gpipe", 4, 2, "duplex")
    assert (made.slots, made.delays) == ("alternating", [3, 2, 1, 0])
