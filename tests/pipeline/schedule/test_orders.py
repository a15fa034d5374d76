"""Schedules: complete, in an order that dependencies allow, with the slots of a simulation from messages."""

from __future__ import annotations

import random
import textwrap
from math import isqrt

import pytest

from pipemare_exp.errors import UserError
from pipemare_exp.pipeline.schedule import orders, versions
from pipemare_exp.pipeline.schedule.actions import Action, Op
from pipemare_exp.pipeline.schedule.orders import gpipe, one_f_one_b, pipedream, pipemare
from tests.pipeline.schedule.event_simulation import simulate


def schedules():
    rng = random.Random(1)
    for k in range(30):
        stages, microbatches, steps = rng.randint(1, 12), rng.randint(1, 9), rng.randint(1, 6)
        start = rng.randint(0, steps)
        yield gpipe(stages, microbatches, steps)
        yield one_f_one_b(stages, microbatches, steps)
        yield pipedream(stages, microbatches, steps, ("duplex", "alternating")[k % 2], start)
        yield pipemare(stages, microbatches, steps, ("duplex", "alternating")[k % 2], start)
        yield pipemare(stages, microbatches, steps, "duplex", start, segment=rng.randint(1, stages))


ALL = list(schedules())


def name_of(plan) -> str:
    numbers = f"P{plan.stages}-N{plan.microbatches}-T{plan.steps}-M{plan.start}"
    return f"{plan.name}-{plan.slots}-{numbers}" + ("" if plan.segment is None else f"-S{plan.segment}")


def number(action: Action) -> int:
    """What an action prints with: an update its step, any other its microbatch."""
    return action.step if action.op is Op.UPDATE else action.microbatch


def slots_of(plan, op: Op) -> list[dict[int, int]]:
    return [{number(a): a.slot for a in column if a.op is op} for column in plan.columns]


@pytest.mark.parametrize("plan", ALL, ids=name_of)
def test_every_stage_does_everything_once_and_in_order(plan):
    total = plan.steps * plan.microbatches
    for column in plan.columns:
        for op, count in ((Op.FORWARD, total), (Op.BACKWARD, total), (Op.UPDATE, plan.steps)):
            assert [number(a) for a in column if a.op is op] == list(range(count))
        first = plan.start * plan.microbatches if plan.segment else total
        assert [a.microbatch for a in column if a.op is Op.RECOMPUTE] == list(range(first, total))
        keys = [(a.slot, "FRBU".index(a.op)) for a in column]
        assert keys == sorted(keys)
        by_slot = {}
        for a in column:
            by_slot.setdefault(a.slot, []).append(str(a.op))
        for slot, ops in by_slot.items():
            work = [op for op in ops if op in "FB"]
            assert len(work) == len(set(work))
            assert len(work) <= (2 if plan.slots == "duplex" and slot >= plan.flushed_slots else 1)
        done = {a.microbatch: a.slot for a in column if a.op is Op.BACKWARD}
        for a in column:
            if a.op is Op.UPDATE:
                assert a.microbatch == (a.step + 1) * plan.microbatches - 1
                assert a.slot == done[a.microbatch]
            else:
                assert a.step == a.microbatch // plan.microbatches


@pytest.mark.parametrize("plan", ALL, ids=name_of)
def test_nothing_runs_before_what_it_needs(plan):
    forward, backward = slots_of(plan, Op.FORWARD), slots_of(plan, Op.BACKWARD)
    again = slots_of(plan, Op.RECOMPUTE)
    for s in range(plan.stages):
        for g in forward[s]:
            if s:
                assert forward[s][g] > forward[s - 1][g]
            if s < plan.stages - 1:
                assert backward[s][g] > backward[s + 1][g]
            assert backward[s][g] > forward[s][g]
        for g, slot in again[s].items():
            assert forward[s][g] <= slot < backward[s][g]
            if s % plan.segment:  # what it recomputes from is what the stage before recomputed
                assert slot == again[s - 1][g] + 1
            if (s + 1) % plan.segment == 0 or s == plan.stages - 1:
                assert slot == backward[s][g] - 1


# The simulation has no flushed 1F1B; the length and the activations of that are tested below.
@pytest.mark.parametrize("plan", [plan for plan in ALL if plan.name != "1f1b"], ids=name_of)
def test_slots_are_those_of_the_simulation(plan):
    kind = "flushed" if plan.name == "gpipe" else plan.slots
    start = 0 if plan.name == "gpipe" else plan.start
    simulated = simulate(plan.stages, plan.microbatches, plan.steps, kind, start)
    assert slots_of(plan, Op.FORWARD) == [stage.forward_slot for stage in simulated]
    assert slots_of(plan, Op.BACKWARD) == [stage.backward_slot for stage in simulated]
    assert slots_of(plan, Op.UPDATE) == [stage.update_slot for stage in simulated]


@pytest.mark.parametrize("plan", ALL, ids=name_of)
def test_activations_in_flight_counted_microbatch_by_microbatch(plan):
    forward, backward = slots_of(plan, Op.FORWARD), slots_of(plan, Op.BACKWARD)
    again = slots_of(plan, Op.RECOMPUTE)
    for s in range(plan.stages):
        held = [0] * plan.length
        for g in forward[s]:
            keeps_all = g not in again[s] or s % plan.segment == 0
            since = forward[s][g] if keeps_all else again[s][g]
            for slot in range(since, backward[s][g]):
                held[slot] += 1
        assert plan.in_flight(s) == held
        assert plan.peak_activations()[s] == max(held)
    assert plan.activations()[-1] == 0
    assert max(plan.activations()) <= sum(plan.peak_activations())


@pytest.mark.parametrize("stages", [1, 2, 5, 9])
def test_duplex_slots_are_the_papers(stages):
    plan = pipemare(stages, 3, 4)
    for s, (forward, backward) in enumerate(
        zip(slots_of(plan, Op.FORWARD), slots_of(plan, Op.BACKWARD), strict=True), start=1
    ):  # s is the paper's i here
        assert forward == {g: g + s - 1 for g in range(12)}
        assert backward == {g: g + 2 * stages - s for g in range(12)}


@pytest.mark.parametrize("make", [gpipe, one_f_one_b])
@pytest.mark.parametrize(("stages", "microbatches"), [(1, 1), (4, 2), (3, 8), (12, 5), (107, 8)])
def test_flushed_utilization(make, stages, microbatches):
    for steps in (1, 3):
        plan = make(stages, microbatches, steps)
        assert plan.length == steps * 2 * (microbatches + stages - 1)
        assert plan.utilization() == plan.utilization(steady=True) == microbatches / (microbatches + stages - 1)


def test_one_f_one_b_holds_no_more_than_the_distance_to_the_end():
    assert one_f_one_b(4, 8, 2).peak_activations() == [4, 3, 2, 1]
    assert one_f_one_b(4, 3, 2).peak_activations() == [3, 3, 2, 1]
    assert gpipe(4, 8, 2).peak_activations() == [8, 8, 8, 8]


@pytest.mark.parametrize("make", [pipedream, pipemare])
@pytest.mark.parametrize("slots", ["duplex", "alternating"])
@pytest.mark.parametrize("start", [0, 2])
def test_asynchronous_utilization(make, slots, start):
    stages, microbatches, steps = 5, 3, 10
    plan = make(stages, microbatches, steps, slots, start)
    assert plan.utilization(steady=True) == 1.0
    total, flushed = steps * microbatches, start * microbatches
    warm = start * 2 * (microbatches + stages - 1)
    if slots == "duplex":  # the last backward is 2P - 1 slots after its forward
        available = warm + 2 * (total - flushed + 2 * stages - 1)
    else:  # a forward and a backward each, and P - 1 slots of fill and of drain
        available = warm + 2 * (total - flushed) + 2 * (stages - 1)
    assert plan.utilization() == pytest.approx(2 * total / available, rel=1e-12)


def test_recomputation_leaves_utilization_and_slots_alone():
    plain, segmented = pipemare(6, 4, 8), pipemare(6, 4, 8, segment=3)
    assert plain.utilization() == segmented.utilization()
    assert segmented.utilization(steady=True) == 1.0
    for op in (Op.FORWARD, Op.BACKWARD, Op.UPDATE):
        assert slots_of(plain, op) == slots_of(segmented, op)


def test_too_short_for_a_steady_state():
    with pytest.raises(ValueError, match="4 asynchronous microbatches in 6 stages"):
        pipemare(6, 2, 2).utilization(steady=True)


@pytest.mark.parametrize("stages", [1, 2, 4, 7, 12])
def test_activations_without_recomputation_are_p_squared(stages):
    plan = pipemare(stages, 2, stages + 3)
    assert max(plan.activations()) == sum(plan.peak_activations()) == stages**2
    assert plan.peak_activations() == [2 * (stages - 1 - s) + 1 for s in range(stages)]
    assert plan.activations()[2 * stages - 1] == stages**2


@pytest.mark.parametrize("stages", [1, 4, 6, 9, 12, 16])
def test_activations_with_segments(stages):
    for segment in (size for size in range(1, stages + 1) if stages % size == 0):
        plan = pipemare(stages, 3, stages + 2, segment=segment)
        assert max(plan.activations()) == stages * segment + stages**2 // segment - stages
        assert sum(plan.peak_activations()) == max(plan.activations())
    if isqrt(stages) ** 2 == stages:
        plan = pipemare(stages, 3, stages + 2, segment=isqrt(stages))
        assert max(plan.activations()) == 2 * isqrt(stages) ** 3 - stages


def test_recomputation_slots_in_segments_of_three_and_a_shorter_last():
    plan = pipemare(5, 2, 6, segment=3)
    lags = [
        {backward[g] - again[g] for g in again}
        for backward, again in zip(slots_of(plan, Op.BACKWARD), slots_of(plan, Op.RECOMPUTE), strict=True)
    ]
    assert lags == [
        {5},
        {3},
        {1},
        {3},
        {1},
    ]  # 2(S - j) + 1 with S = 3, then with the two stages that are left
    assert [plan.segment_of(s) for s in (0, 2, 3, 4)] == [range(3), range(3), range(3, 5), range(3, 5)]


def test_only_asynchronous_steps_recompute():
    plan = pipemare(4, 2, 5, start=2, segment=2)
    assert all(min(again) == 4 for again in slots_of(plan, Op.RECOMPUTE))
    assert max(plan.in_flight(3)[: plan.flushed_slots]) == 2


def test_gpipe_grid():
    assert gpipe(2, 2, 2).render().splitlines() == [
        "slot    0  1  2  3  4   5   6  7  8  9  10  11",
        "stage 0 F0 F1 .  .  B0  B1* F2 F3 .  .  B2  B3*",
        "stage 1 .  F0 F1 B0 B1* .   .  F2 F3 B2 B3* .",
    ]


def test_pipemare_grids():
    assert str(pipemare(2, 2, 2)).splitlines() == [
        "slot    0  1  2     3      4     5   6",
        "stage 0 F0 F1 F2    F3/B0  B1*   B2  B3*",
        "stage 1 .  F0 F1/B0 F2/B1* F3/B2 B3* .",
    ]
    assert str(pipemare(2, 1, 2, "alternating")).splitlines() == [
        "slot    0  1  2   3   4   5",
        "stage 0 F0 F1 .   B0* .   B1*",
        "stage 1 .  F0 B0* F1  B1* .",
    ]
    assert str(pipemare(2, 1, 2, segment=2)).splitlines() == [
        "slot    0     1     2         3   4",
        "stage 0 F0/R0 F1/R1 .         B0* B1*",
        "stage 1 .     F0/R0 F1/R1/B0* B1* .",
    ]


def test_the_drawings_of_the_docstring_are_the_schedules():
    for plan in (gpipe(3, 2, 2), pipemare(3, 2, 4)):
        assert textwrap.indent(plan.render(), "    ") in orders.__doc__
    assert versions.walk(pipemare(3, 2, 4)).forward[0][3] == [0, 1]  # what it says of F6


def test_actions_are_data():
    plan = pipemare(2, 1, 2)
    assert plan.columns[1][:3] == (
        Action(Op.FORWARD, 0, 0, 1),
        Action(Op.FORWARD, 1, 1, 2),
        Action(Op.BACKWARD, 0, 0, 2),
    )
    assert [str(a) for a in plan.columns[1]] == ["F0", "F1", "B0", "U0", "B1", "U1"]
    assert plan == pipemare(2, 1, 2) and hash(plan) == hash(pipemare(2, 1, 2))
    executable = [(s, str(a)) for s, a in plan.actions()]
    assert executable[:4] == [(0, "F0"), (0, "F1"), (1, "F0"), (1, "F1")]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: pipemare(0, 2, 3), "stages=0"),
        (lambda: gpipe(2, 0, 3), "microbatches=0"),
        (lambda: one_f_one_b(2, 2, 0), "steps=0"),
        (lambda: pipedream(2, 2, 3, start=4), "start=4 with steps=3"),
        (lambda: pipedream(2, 2, 3, "both"), "'both'.*duplex, alternating"),
        (lambda: pipemare(4, 2, 3, segment=5), "segment=5 with stages=4"),
        (lambda: pipemare(4, 2, 3, segment=0), "segment=0 with stages=4"),
        (lambda: pipemare(4, 2, 3, "alternating", segment=2), "segment=2.*duplex slots.*every delay"),
    ],
)
def test_wrong_numbers_are_named(make, words):
    with pytest.raises(UserError, match=words):
        make()
