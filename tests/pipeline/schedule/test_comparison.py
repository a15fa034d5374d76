"""The comparison of schedules: a row for each, what is in it, and why one cannot be had."""

from __future__ import annotations

import pytest

from pipemare_exp.errors import UserError
from pipemare_exp.pipeline.schedule import comparison, orders, versions
from pipemare_exp.pipeline.schedule.costs import Costs
from pipemare_exp.pipeline.schedule.timing import Times, walk_times

ASYNCHRONOUS = {"stashing": ("stashing", Costs(stash=1.0)), "late": ("late", Costs(buffers=1.0))}


def rows(*args, **options) -> dict[str, comparison.Row]:
    return {row.name: row for row in comparison.compare(*args, ASYNCHRONOUS, **options)}


@pytest.mark.parametrize(("devices", "count"), [(1, 1), (4, 2), (3, 6), (5, 9)])
@pytest.mark.parametrize("slots", ["duplex", "alternating"])
def test_an_asynchronous_row_is_what_a_walk_of_the_real_minibatches_gives(devices, count, slots):
    times = Times(1, 1.5, 0.7)
    row = rows(devices, count, slots=slots, times=times)["late"]
    plan = orders.pipemare(devices, count, 8 * devices // count + 9, slots)
    step = walk_times(plan, times).step(2 * devices // count + 1, 4 * devices // count + 3)
    assert row.step == pytest.approx(step) == pytest.approx(count * 3.2)
    assert (row.activations, row.fullest) == (sum(plan.peak_activations()), max(plan.peak_activations()))
    delays = versions.mean_delays(devices, count, slots)
    assert row.delay == pytest.approx((delays[0], sum(delays) / devices))
    assert row.weights == 2 and rows(devices, count, slots=slots)["stashing"].weights == pytest.approx(1 + row.delay[1])


def test_synchronous_rows():
    found = rows(4, 8)
    assert found["gpipe"].utilization == found["1f1b"].utilization == pytest.approx(8 / 11)
    assert found["interleaved"].utilization == pytest.approx(8 / 9.5) and found["interleaved"].stages == 8
    assert found["zb_h1"].step == pytest.approx(24 + 3) and found["zb_v"].step == found["zb_h2"].step == 24
    assert (found["gpipe"].activations, found["1f1b"].activations, found["zb_v"].fullest) == (32, 10, 4)
    assert all(
        row.delay == (0, 0) and row.weights == 1 for name, row in found.items() if name in comparison.SYNCHRONOUS
    )


def test_what_cannot_be_had_says_why_and_what_works():
    found = rows(4, 9)
    assert "3 rounds" not in str(found["interleaved"].why_not) and "8 and 10" in found["interleaved"].why_not
    assert found["interleaved"].utilization is None
    assert "take 8 or more" in rows(4, 7)["dualpipe_v"].why_not
    crowded = rows(4, 8, units=7)
    assert "2 stages on each of 4 devices are 8, the model has 7 weight units; 3 devices" in crowded["zb_v"].why_not
    assert crowded["zb_h1"].why_not is None
    with pytest.raises(UserError, match="stages=0"):
        rows(0, 3)


def test_the_nearest_numbers_of_microbatches_work():
    for devices in (3, 4, 7):
        for count in range(1, 40):
            below, above = orders.in_rounds.nearest(devices, count)
            assert below < count < above
            for near in (below, above):
                if near:
                    orders.interleaved(devices, near, 1)


@pytest.mark.parametrize(
    ("devices", "count", "gains"),
    [(8, 8, (1.88, 1.44, 1.29, 1.29)), (8, 32, (1.22, 1.11, 1.07, 1.00)), (107, 8, (14.25, 13.81, 9.54, 9.54))],
)
def test_the_gains_that_the_page_of_decisions_names(devices, count, gains):
    found = rows(devices, count)
    ours = found["late"].step
    named = [found[name].step / ours for name in ("gpipe", "interleaved", "zb_h1", "zb_v")]
    assert named == pytest.approx(gains, abs=0.006)
