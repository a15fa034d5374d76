"""Messages between ranks: every one that is sent is taken, and no rank waits for ever."""

from __future__ import annotations

import random

import pytest

from pipemare_exp import methods
from pipemare_exp.errors import UserError
from pipemare_exp.pipeline.method import Method
from pipemare_exp.pipeline.runtime.routes import check_messages, columns_of, takes_from
from pipemare_exp.pipeline.schedule.actions import Action, Op
from pipemare_exp.pipeline.schedule.columns import Columns
from pipemare_exp.pipeline.schedule.ranks import ranks_of
from tests.pipeline.schedule.test_columns import random_columns


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
    swapped = [
        (0, Action(Op.BACKWARD, 0, 0, 0)),
        *[item for item in first if item[1].microbatch or item[1].op != Op.BACKWARD],
    ]
    with pytest.raises(RuntimeError, match="wait for ever"):
        check_messages([swapped, last], 2, None)


def test_the_check_finds_a_message_that_nobody_takes() -> None:
    columns = Columns(2, 1, 2, "duplex", 0)
    first, last = (list(columns.rank([stage])) for stage in range(2))
    with pytest.raises(RuntimeError, match="never taken"):
        check_messages([first[:-2], last], 2, None)


def test_recomputations_take_messages_within_their_segment_only() -> None:
    assert takes_from(2, Action(Op.RECOMPUTE, 5, 5, 0), 4, 2) is None
    assert takes_from(3, Action(Op.RECOMPUTE, 5, 5, 0), 4, 2) == (2, Op.RECOMPUTE, 5)


@pytest.mark.parametrize(("stages", "ranks"), [(7, 3), (4, 4), (5, 2), (9, 1)])
def test_ranks_hold_contiguous_stages_in_like_numbers(stages: int, ranks: int) -> None:
    held = ranks_of(stages, ranks)
    assert [stage for part in held for stage in part] == list(range(stages))
    assert max(map(len, held)) - min(map(len, held)) <= 1


class TwoBuffers(Method):
    """As PipeDream-2BW: late by one step at every stage, which is known and not drawn."""

    name = "two_buffers"
    synchronous = False


def test_refusals() -> None:
    with pytest.raises(UserError, match="engine.ranks=3 with 2 stages"):
        ranks_of(2, 3)
    with pytest.raises(UserError, match="drawn at random"):
        columns_of(methods.build("hogwild"), 2, 1, 4, "duplex")
    with pytest.raises(UserError, match="method.name=two_buffers with engine=runtime: (?!.*random)"):
        columns_of(TwoBuffers(), 2, 1, 4, "duplex")
    with pytest.raises(UserError, match="engine.flush=1f1b with method t1"):
        columns_of(methods.build("pipemare", lr_rescheduling_steps=3), 2, 1, 4, "duplex", flush="1f1b")
