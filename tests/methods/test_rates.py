"""T1: alpha_{t,i} = alpha_base(t) / max(tau_i, 1)^p, p = 1 - min((t - M)/K, 1), checked at every step."""

import pytest

from tests.methods.binding import bound, tau


@pytest.mark.parametrize("slots", ["duplex", "alternating"])
@pytest.mark.parametrize("stages, N", [(1, 1), (4, 1), (7, 3), (5, 8), (107, 32)])
@pytest.mark.parametrize("K, M", [(1, 0), (10, 0), (13, 4)])
def test_rates_of_every_step(K, M, stages, N, slots):
    method = bound("pipemare", stages, N, slots, lr_rescheduling_steps=K, warmup_steps=M)
    for t in range(M + K + 5):
        factors = method.rate_factors(t)
        if t < M or t >= M + K:
            assert factors == [1.0] * stages
            continue
        p = 1 - min((t - M) / K, 1)
        for factor, delay in zip(factors, tau(stages, N, slots), strict=True):
            assert factor == pytest.approx(1 / max(delay, 1.0) ** p, rel=1e-14)
            assert factor <= 1.0  # the clamp: a delay below one step never raises a rate
    if tau(stages, N, slots)[0] > 1:
        assert method.rate_factors(M)[0] == pytest.approx(1 / tau(stages, N, slots)[0])
        assert method.rate_factors(M)[0] < 1


def test_clamped_stages_are_those_below_one_step():
    factors = bound("pipemare", 8, 8, lr_rescheduling_steps=5).rate_factors(0)
    assert [factor < 1 for factor in factors] == [2 * (8 - i) + 1 > 8 for i in range(1, 9)]


def test_the_rates_rise_to_the_base_rate():
    method = bound("pipemare", 6, 2, lr_rescheduling_steps=20, warmup_steps=3)
    first = [method.rate_factors(t)[0] for t in range(3, 30)]
    assert all(a <= b for a, b in zip(first, first[1:], strict=False)) and first[-1] == 1.0
    assert first[10] == pytest.approx((2 * 5 + 1) ** -0.5 * 2**0.5)  # half way: p = 1/2


@pytest.mark.parametrize(
    "name, options",
    [
        ("gpipe", {}),
        ("pipedream", {}),
        ("pipemare", {}),
        ("pipemare", {"decay": 0.1353}),
        ("pipemare", {"warmup_steps": 6}),
        ("pipedream", {"warmup_steps": 6}),
    ],
)
def test_without_t1_no_rate_is_changed(name, options):
    method = bound(name, 9, 2, **options)
    assert all(method.rate_factors(t) == [1.0] * 9 for t in range(12))


def test_plain_warm_up_is_one_line_for_all_stages():
    method = bound("plain_warmup", 5, 2, ramp_steps=4, warmup_steps=3)
    factors = [method.rate_factors(t) for t in range(9)]
    assert factors == [[f] * 5 for f in (1, 1, 1, 0.25, 0.5, 0.75, 1, 1, 1)]


def test_pipedream_lr_divides_by_the_delay_with_a_stash():
    """`pipedream+t1`, the baseline that later papers call PipeDream-LR: T1's factors, and PipeDream's reads."""
    both, stash, t1 = (bound(name, 6, 2, lr_rescheduling_steps=K) for name, K in
                       (("pipedream", 9), ("pipedream", 0), ("pipemare", 9)))  # fmt: skip
    assert both.label == "pipedream+t1"
    for t in range(12):
        assert both.rate_factors(t) == t1.rate_factors(t)
        assert both.forward(t, 1) == stash.forward(t, 1) == both.backward(t, 1)
