"""Golden schedules: action by action those of torch.distributed.pipelining, wherever both define one."""

from __future__ import annotations

import pytest
from torch.distributed.pipelining import (
    Schedule1F1B,
    ScheduleDualPipeV,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
)

from pipemare_exp.errors import UserError
from pipemare_exp.pipeline.schedule import orders
from tests.pipeline.schedule.torch_tables import ours, single_stage_table, table

DEVICES = (1, 2, 3, 4, 5, 8)
MICROBATCHES = (*range(1, 13), 16, 24)


@pytest.mark.parametrize("devices", DEVICES)
@pytest.mark.parametrize("virtual", [2, 3, 4])
def test_interleaved(devices, virtual):
    compared = 0
    for count in MICROBATCHES:
        if count % max(1, count // devices):  # torch refuses these, and so do we
            with pytest.raises(UserError, match="rounds of one length"):
                orders.interleaved(devices, count, 1, virtual)
            continue
        expected = table(ScheduleInterleaved1F1B, devices, count, virtual)
        assert ours(orders.interleaved(devices, count, 1, virtual)) == expected
        compared += 1
    assert compared > 5


@pytest.mark.parametrize("devices", DEVICES)
def test_zb_h1_is_the_zero_bubble_schedule_of_one_stage_a_rank(devices):
    for count in MICROBATCHES:
        expected = table(ScheduleInterleavedZeroBubble, devices, count)
        assert ours(orders.zb_h1(devices, count, 1)) == expected


@pytest.mark.parametrize("devices", DEVICES)
def test_zb_v(devices):
    for count in MICROBATCHES:
        assert ours(orders.zb_v(devices, count, 1)) == table(ScheduleZBVZeroBubble, devices, count, 2)


@pytest.mark.parametrize("devices", DEVICES)
def test_dualpipe_v(devices):
    compared = 0
    for count in MICROBATCHES:
        if count >= 2 * devices:
            assert ours(orders.dualpipe_v(devices, count, 1)) == table(ScheduleDualPipeV, devices, count, 2)
            compared += 1
    assert compared


@pytest.mark.parametrize("devices", DEVICES)
def test_gpipe_and_1f1b(devices):
    for count in MICROBATCHES:
        assert ours(orders.gpipe(devices, count, 1)) == single_stage_table(ScheduleGPipe, devices, count)
        if count >= devices:  # torch's table of 1F1B is written for these only
            # In torch 2.14 the last rank's table counts its forwards from 1 (what it executes is another loop).
            expected = single_stage_table(Schedule1F1B, devices, count)[:-1]
            assert ours(orders.one_f_one_b(devices, count, 1))[:-1] == expected
