"""What ranks execute: long columns are the schedule's own; messages match, and no rank waits for ever."""

from __future__ import annotations

import random

import pytest

from pipemare_exp import methods
from pipemare_exp.errors import UserError
from pipemare_exp.pipeline.schedule.actions import Action, Op
from pipemare_exp.pipeline.schedule.columns import Columns, check_messages, columns_of, ranks_of, takes_from


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
        done = [action.index for action in whole[: len(whole) - len(rest)] if action.op is Op.UPDATE]
        assert done == list(range(after))
        assert len(rest) == len(whole) or whole[len(whole) - len(rest) - 1].op is Op.UPDATE


@pytest.mark.parametrize("seed", range(80))
def test_messages_match_and_nothing_waits_for_ever(seed: int) -> None:
    columns = random_columns(seed)
    ranks = random.Random(seed).randint(1, columns.stages)
    lists = [list(columns.rank(stages)) for stages in ranks_of(columns.stages, ranks)]
    sent = check_messages(lists, columns.stages, columns.segment)
    boundaries = columns.stages - 1
    if columns.segment is None:
        assert sent == 2 * boundaries * columns.steps * columns.microbatches
    else:
        assert sent >= 2 * boundaries * columns.steps * columns.microbatches


def test_the_check_finds_a_deadlock() -> None:
    """The last stage asked for a backward before the forward that makes its input: two ranks wait for each other."""
    columns = Columns(2, 1, 2, "duplex", 0)
    first, last = (list(columns.rank([stage])) for stage in range(2))
    swapped = [(0, Action(Op.BACKWARD, 0, 0)), *[item for item in first if item[1].index or item[1].op != Op.BACKWARD]]
    with pytest.raises(RuntimeError, match="wait for ever"):
        check_messages([swapped, last], 2, None)


def test_the_check_finds_a_message_that_nobody_takes() -> None:
    columns = Columns(2, 1, 2, "duplex", 0)
    first, last = (list(columns.rank([stage])) for stage in range(2))
    with pytest.raises(RuntimeError, match="never taken"):
        check_messages([first[:-2], last], 2, None)


def test_recomputations_take_messages_within_their_segment_only() -> None:
    assert takes_from(2, Action(Op.RECOMPUTE, 5, 0), 4, 2) is None
    assert takes_from(3, Action(Op.RECOMPUTE, 5, 0), 4, 2) == (2, Op.RECOMPUTE, 5)


@pytest.mark.parametrize(("stages", "ranks"), [(7, 3), (4, 4), (5, 2), (9, 1)])
def test_ranks_hold_contiguous_stages_in_like_numbers(stages: int, ranks: int) -> None:
    held = ranks_of(stages, ranks)
    assert [stage for part in held for stage in part] == list(range(stages))
    assert max(map(len, held)) - min(map(len, held)) <= 1


def test_refusals() -> None:
    with pytest.raises(UserError, match="engine.ranks=3 with 2 stages"):
        ranks_of(2, 3)
    with pytest.raises(UserError, match="drawn at random"):
        columns_of(methods.build("hogwild"), 2, 1, 4, "duplex")
    with pytest.raises(UserError, match="engine.flush=1f1b with method t1"):
        columns_of(methods.build("pipemare", lr_rescheduling_steps=3), 2, 1, 4, "duplex", flush="1f1b")
