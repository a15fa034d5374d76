"""Times: a walk == a clock that ticks; the known formulas of bubbles; what communication costs."""

from __future__ import annotations

import random

import pytest

from pipemare_exp.errors import UserError
from pipemare_exp.pipeline.schedule import orders
from pipemare_exp.pipeline.schedule.comparison import SYNCHRONOUS
from pipemare_exp.pipeline.schedule.timing import Times, walk_times
from tests.pipeline.schedule.ticking import tick
from tests.pipeline.schedule.torch_tables import ours


def made(name: str, devices: int, microbatches: int, steps: int):
    """The schedule, or None where there is none for these numbers."""
    try:
        return SYNCHRONOUS[name][1](devices, microbatches, steps)
    except UserError:
        return None


def step_time(plan, times: Times) -> float:
    return walk_times(plan, times).step(plan.steps - 2, plan.steps - 1)


@pytest.mark.parametrize("seed", range(40))
def test_the_walk_is_what_a_ticking_clock_gives(seed):
    rng = random.Random(seed)
    devices, count = rng.randint(1, 5), rng.randint(1, 10)
    forward, first, second, message = (rng.randint(1, 5), rng.randint(1, 5), rng.randint(1, 5), rng.randint(0, 4))
    plans = [made(name, devices, count, 2) for name in SYNCHRONOUS]
    plans += [orders.pipemare(devices, count, 3, slots) for slots in ("duplex", "alternating")]
    plans.append(orders.pipemare(devices, count, 3, "alternating", defer=rng.randint(0, 4)))
    for plan in filter(None, plans):
        share = plan.devices / plan.stages
        times = Times(forward / share, first / share, second / share, message)
        takes = {"F": forward, "B": first + second, "I": first, "W": second}
        lists = [[(str(op), stage, g) for op, stage, g in mine] for mine in ours(plan)]
        expected = tick(lists, plan.stages, takes, message)
        walked = walk_times(plan, times).starts
        assert {(str(op), s, g): start for (op, s, g), start in walked.items()} == pytest.approx(expected)


def random_times(rng: random.Random) -> Times:
    return Times(*(rng.uniform(0.3, 2) for _ in range(3)), rng.choice([0, 0.4]))


@pytest.mark.parametrize("name", SYNCHRONOUS)
def test_every_step_repeats_the_first(name):
    rng = random.Random(7)
    for _ in range(25):
        plan = made(name, rng.randint(1, 6), rng.randint(1, 13), 5)
        if plan is not None:
            walked_with = random_times(rng)
            walked = walk_times(plan, walked_with)
            steps = [walked.step(t, t + 1) for t in range(4)]
            assert steps == pytest.approx([steps[0]] * 4)
            assert (
                walk_times(made(name, plan.devices, plan.microbatches, 1), walked_with, runs=5).starts == walked.starts
            )


@pytest.mark.parametrize("seed", range(20))
def test_known_bubbles(seed):
    """GPipe, 1F1B: (P-1)(F+B). Interleaved: that over v, N a multiple of P. Qi et al., section 3 and table 2."""
    rng = random.Random(seed)
    devices, rounds = rng.randint(1, 6), rng.randint(1, 3)
    f, i = rng.uniform(0.5, 2), rng.uniform(0.5, 2)
    w = rng.uniform(0.1, min(f, i))  # weight gradients that fit in where a device would wait
    times = Times(f, i, w)
    count = 2 * devices * rounds
    work = count * (f + i + w)
    hops = devices - 1
    expected = {"gpipe": hops * (f + i + w), "1f1b": hops * (f + i + w), "zb_h1": hops * (f + i - w)}
    for name, bubble in expected.items():
        assert step_time(made(name, devices, count, 3), times) == pytest.approx(work + bubble), name
    for virtual in (2, 3):
        plan = orders.interleaved(devices, count, 3, virtual)
        assert step_time(plan, times) == pytest.approx(work + hops * (f + i + w) / virtual)
        assert max(plan.device_peaks()) == pytest.approx((devices * (virtual + 1) - 1) / virtual)


@pytest.mark.parametrize("devices", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("more", [0, 1, 5])
def test_zero_bubbles_where_the_three_operations_take_equally_long(devices, more):
    count = 2 * devices - 1 + more
    for name in ("zb_h2", "zb_v"):
        assert step_time(made(name, devices, count, 3), Times()) == pytest.approx(3 * count)
    h1 = made("zb_h1", devices, count, 1)
    assert max(h1.device_peaks()) == max(orders.one_f_one_b(devices, count, 1).device_peaks()) == devices
    assert max(made("zb_v", devices, count, 1).device_peaks()) == devices
    assert max(made("zb_h2", devices, count, 1).device_peaks()) == 2 * devices - 1


def test_dualpipe_v_lies_between_1f1b_and_no_bubble_and_holds_half_a_microbatch_more():
    for devices in (2, 4, 6):
        plan = orders.dualpipe_v(devices, 4 * devices, 3)
        bubble = step_time(plan, Times()) - 4 * devices * 3
        assert 0 < bubble < step_time(orders.one_f_one_b(devices, 4 * devices, 3), Times()) - 4 * devices * 3
        assert max(orders.dualpipe_v(devices, 4 * devices, 1).device_peaks()) == devices + 0.5


def test_an_asynchronous_pipeline_hides_messages_by_its_slack():
    """In alternating slots P - s microbatches are under way for a round trip of P (F+B) and 2 (P-1) messages. Duplex
    slots have about twice as many. A split backward sends its gradient one W earlier, without any more delay."""
    stages, message = 6, 0.25
    times = Times(communication=message)

    def each(slots, defer=None):
        plan = orders.pipemare(stages, 1, 60, slots, defer=defer)
        return walk_times(plan, times).step(18, 42)

    assert each("alternating") == pytest.approx((stages * 3 + 2 * (stages - 1) * message) / stages)
    assert each("duplex") == pytest.approx(3)
    assert each("alternating", defer=0) == pytest.approx(3)


def test_wrong_times_are_named():
    with pytest.raises(UserError, match="weight_gradient=-1"):
        Times(weight_gradient=-1)
    with pytest.raises(UserError, match="at least one must take some"):
        Times(0, 0, 0)
    with pytest.raises(ValueError, match="recomputes"):
        walk_times(orders.pipemare(4, 2, 3, segment=2), Times())
