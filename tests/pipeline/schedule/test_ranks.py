"""What each rank holds by the plan: by hand, against the sums over all ranks, and against what real stages keep."""

from __future__ import annotations

import pytest

from pipemare_exp import methods
from pipemare_exp.errors import UserError
from pipemare_exp.pipeline.runtime.stage import depths
from pipemare_exp.pipeline.schedule import costs
from pipemare_exp.pipeline.schedule.ranks import beside, plan_ranks
from pipemare_exp.pipeline.schedule.versions import slot_delays
from tests.methods.binding import bound

DECLARED = methods.costs()


def test_four_stages_on_two_ranks_by_hand() -> None:
    """N = 2, duplex: L = 7, 5, 3, 1; stages of 10, 20, 30, 40 weights; momentum."""
    first, second = plan_ranks(DECLARED, 4, 2, 2, 1, sizes=[10, 20, 30, 40])
    assert (first.rank, first.node, first.first, first.last, first.weights) == (0, 0, 0, 1, 30)
    assert (second.rank, second.node, second.first, second.last, second.weights) == (1, 1, 2, 3, 70)
    assert first.held["gpipe"] == 3 * 30 and second.held["pipemare_no_t2"] == 3 * 70
    # ceil(7/2) and ceil(5/2) past versions, and a copy of the current one.
    assert first.held["pipedream"] == 3 * 30 + (4 + 1) * 10 + (3 + 1) * 20
    assert first.held["pipemare"] == (3 + 2) * 30  # delta, and the copy
    assert (first.activations["gpipe"], first.activations["pipemare"]) == (4, 12)
    assert (second.activations["gpipe"], second.activations["pipemare"]) == (4, 4)


@pytest.mark.parametrize("slots", ["duplex", "alternating"])
@pytest.mark.parametrize(("stages", "microbatches", "ranks"), [(4, 2, 3), (9, 4, 2), (107, 8, 16)])
def test_ranks_add_up_to_the_whole(stages: int, microbatches: int, ranks: int, slots: str) -> None:
    plans = plan_ranks(DECLARED, stages, microbatches, ranks, 4, slots=slots)
    assert [plan.first for plan in plans[1:]] == [plan.last + 1 for plan in plans[:-1]]
    assert sum(plan.weights for plan in plans) == pytest.approx(1)
    for name, declared in DECLARED.items():
        whole = declared.activations(stages, microbatches, slots)
        assert sum(plan.activations[name] for plan in plans) == whole
        least = declared.memory(stages, microbatches, "sgd_momentum", slots).total()
        held = sum(plan.held[name] for plan in plans)
        # Whole versions where the paper counts their average over time, and one copy of the current weights.
        assert least - costs.optimizer_memory("sgd") - 0.5 <= held <= least + 2


@pytest.mark.parametrize("slots", ["duplex", "alternating"])
@pytest.mark.parametrize(
    ("kind", "options", "name"),
    [
        ("gpipe", {}, "gpipe"),
        ("pipedream", {}, "pipedream"),
        ("pipemare", {}, "pipemare_no_t2"),
        ("pipemare", {"decay": 0.1}, "pipemare"),
    ],
)
def test_the_plan_counts_what_a_stage_of_the_runtime_keeps(kind: str, options: dict, name: str, slots: str) -> None:
    stages, microbatches = 5, 3
    method = bound(kind, stages, microbatches, slots, **options)
    for stage, delay in enumerate(slot_delays(stages, slots)):
        depth = depths(method, stage)[stage]
        ring = 0 if depth is None else depth + 1
        buffers = int(method.tracks()[stage])
        assert beside(DECLARED[name], delay, microbatches) == ring + buffers, stage


def test_more_ranks_than_stages_are_refused() -> None:
    with pytest.raises(UserError, match="engine.ranks=5 with 4 stages"):
        plan_ranks(DECLARED, 4, 2, 5, 1)
