"""Methods that predict, where what they should have predicted is known exactly."""

import pytest
import torch

from pipemare_exp import methods
from pipemare_exp.errors import UserError
from tests.methods.binding import bound
from tests.methods.quadratic import has_edge, momentum, path
from tests.pipeline.toys import dense_net, emulator

P = 3


def linear(w, t):
    """A gradient of 0.5 at every step."""
    return 0.5 * w


def seen_at(name, s, slots):
    """Which later version of stage s the forward of step t should read, as an offset from t (N = 1)."""
    if name == "pipe_optim":
        return 0  # that of its backward
    if name == "spectrain":
        return s if slots == "duplex" else s // 2  # that of the backward at the first stage
    return 1  # one microbatch past its backward


@pytest.mark.parametrize("slots", ["duplex", "alternating"])
@pytest.mark.parametrize("name", ["pipe_optim", "spectrain", "spectrain_stash"])
def test_exact_where_the_gradient_is_constant(name, slots):
    """Plain SGD: what a forward reads is the later version that it aims at, past the fill."""
    walked, read = path(methods.build(name), 24, linear, rate=0.1, stages=P, slots=slots)
    for t, s in ((t, s) for t in range(8, 20) for s in range(P)):
        assert read[t, s] == pytest.approx(float(walked[t + seen_at(name, s, slots), s]), abs=1e-12)


def test_the_direction_is_that_of_the_version_read():
    """Delay 2, momentum 0.5, a gradient that changes its sign once, at step 6: by hand.

    m_v = m_{v-1}/2 + g_{v-1}; the forward of step t reads w_{t-2} - 2 * 0.1 * m_{t-2}. With m of another version the
    reads of steps 7, 8 and 9 would be others.
    """

    def loss(w, t):
        return (1.0 if t < 6 else -1.0) * w

    options = {"rate": 0.1, "optimizer": momentum(0.5), "stages": P, "slots": "alternating"}
    walked, read = path(methods.build("pipe_optim"), 12, loss, **options)
    m, w = [0.0], [1.0]
    for t in range(12):
        m.append(0.5 * m[-1] + (1.0 if t < 6 else -1.0))
        w.append(w[-1] - 0.1 * m[-1])
    assert walked[:, 0].tolist() == pytest.approx(w, abs=1e-12)
    expected = [w[max(t - 2, 0)] - 0.2 * m[max(t - 2, 0)] for t in range(12)]
    assert read[:, 0].tolist() == pytest.approx(expected, abs=1e-12)
    wrong = [w[max(t - 2, 0)] - 0.2 * m[t] for t in range(12)]
    assert max(abs(a - b) for a, b in zip(expected, wrong, strict=True)) > 0.1


@pytest.mark.parametrize("tau, edge", [(0, 3.8), (1, 0.27016), (5, 0.03662)])
@pytest.mark.parametrize("name", ["pipe_optim", "spectrain"])
def test_edge_of_stability_with_momentum(name, tau, edge):
    """SGD with momentum 0.9 on a quadratic, gradients at w_{t-tau} - tau * rate * m_{t-tau}: from the roots of its
    characteristic polynomial. Unpredicted the edges are 3.8, 0.1 and 0.0215."""
    options = {"stages": tau + 1, "slots": "alternating", "optimizer": momentum(0.9)}
    assert has_edge(lambda: methods.build(name), edge, **options)


@pytest.mark.parametrize("name", ["msnag", "msnag_stash"])
def test_coasting_is_exact_where_the_gradient_is_zero(name):
    """A gradient for 5 steps, then none: the momentum that is left carries the weights to where msnag says; SpecTrain's
    constant direction overshoots. Without momentum msnag reads w_v itself."""

    def loss(w, t):
        return (1.0 if t < 5 else 0.0) * w

    options = {"rate": 0.1, "stages": P, "slots": "alternating"}
    walked, read = path(methods.build(name), 16, loss, optimizer=momentum(0.8), **options)
    over = path(methods.build("pipe_optim"), 16, loss, optimizer=momentum(0.8), **options)[1]
    for t in range(7, 16):
        assert read[t, 0] == pytest.approx(float(walked[t, 0]), abs=1e-12)
        assert over[t, 0] < read[t, 0] - 1e-3
    walked, read = path(methods.build(name), 9, loss, **options)
    assert read[2:, 0].tolist() == walked[:-3, 0].tolist()


def test_one_prediction_for_a_minibatch():
    """XPipe: microbatches 1 to 3 read what microbatch 0 reads, where SpecTrain's read a newer version."""
    xpipe, spectrain = bound("xpipe", 3, 4), bound("spectrain", 3, 4)
    for step in range(2, 8):
        assert all(xpipe.forward(step, n) == spectrain.forward(step, 0) for n in range(4))
    assert spectrain.forward(5, 3) != spectrain.forward(5, 0)
    assert xpipe.ahead == [(5 + 0) / 4, (3 + 1) / 4, (1 + 2) / 4] and xpipe.ahead_backward == [0, 1 / 4, 2 / 4]


def test_horizons_of_alternating_slots_are_those_of_their_code():
    """SpecTrain, N = 1: floor(s/2) + P - s - 1 and floor(s/2); version 2: P - s."""
    method, other = bound("spectrain", 6, 1, "alternating"), bound("spectrain_stash", 6, 1, "alternating")
    assert method.ahead == [s // 2 + 6 - s - 1 for s in range(6)]
    assert method.ahead_backward == [s // 2 for s in range(6)]
    assert other.ahead == [6 - s for s in range(6)]


@pytest.mark.parametrize("name", ["pipe_optim", "msnag"])
def test_an_optimizer_without_a_direction_is_refused(name):
    with pytest.raises(UserError, match=f"{name} with the optimizer Adagrad: the direction"):
        emulator(
            dense_net(), torch.zeros(2, 5).double(), [0, 2], methods.build(name),
            lambda groups: torch.optim.Adagrad(groups, lr=0.0), 2,
        )  # fmt: skip
