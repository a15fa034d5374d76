"""What ranks execute: long columns are the schedule's own, from any step on."""

from __future__ import annotations

import random

import pytest

from pipemare_exp.pipeline.schedule.actions import Op
from pipemare_exp.pipeline.schedule.columns import Columns


def random_columns(seed: int) -> Columns:
    draw = random.Random(seed)
    stages, microbatches = draw.randint(1, 7), draw.randint(1, 5)
    steps = draw.choice([1, 2, 5, 17, 40, 60])
    slots = draw.choice(["duplex", "alternating"])
    start = draw.choice([None, 0, 0, 1, 3, steps])
    if start is None:
        return Columns(stages, microbatches, steps, flush=draw.choice(["gpipe", "1f1b"]))
    segment = draw.choice([None, draw.randint(1, stages)]) if slots == "duplex" else None
    return Columns(stages, microbatches, steps, slots, min(start, steps), segment)


@pytest.mark.parametrize("seed", range(60))
def test_a_repeated_period_gives_the_whole_schedule(seed: int) -> None:
    columns = random_columns(seed)
    start = columns.steps if columns.start is None else columns.start
    whole = columns.schedule(columns.steps, start)
    for stage in range(columns.stages):
        assert tuple(columns.stage(stage)) == whole.columns[stage]


@pytest.mark.parametrize("seed", range(20))
def test_a_column_can_begin_after_any_update(seed: int) -> None:
    columns = random_columns(seed)
    after = random.Random(-seed).randint(0, columns.steps)
    for stage in range(columns.stages):
        whole = list(columns.stage(stage))
        rest = list(columns.stage(stage, after))
        assert rest == whole[len(whole) - len(rest) :]
        done = [action.step for action in whole[: len(whole) - len(rest)] if action.op is Op.UPDATE]
        assert done == list(range(after))
        assert len(rest) == len(whole) or whole[len(whole) - len(rest) - 1].op is Op.UPDATE
