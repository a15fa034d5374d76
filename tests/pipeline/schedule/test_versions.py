"""Versions read: closed form == walk over the schedule == a simulation from messages."""

from __future__ import annotations

import random
from statistics import fmean

import pytest

from pipemare_exp.errors import UserError
from pipemare_exp.pipeline.schedule import orders as schedule
from pipemare_exp.pipeline.schedule import versions
from pipemare_exp.pipeline.schedule.actions import SLOT_KINDS, Op
from tests.pipeline.schedule.event_simulation import by_step, simulate


def cases(count: int, seed: int) -> list[tuple[int, int, int, str, int]]:
    rng = random.Random(seed)
    drawn = []
    for k in range(count):
        stages, microbatches = rng.randint(1, 12), rng.randint(1, 9)
        steps = rng.randint(1, 2 * stages // microbatches + 5)
        start = rng.choice([0, 0, rng.randint(0, min(steps, 4))])
        drawn.append((stages, microbatches, steps, SLOT_KINDS[k % 2], start))
    return drawn


@pytest.mark.parametrize("case", cases(60, seed=0), ids=str)
def test_closed_form_walk_and_simulation_agree(case):
    stages, microbatches, steps, slots, start = case
    closed = versions.forward_versions(stages, microbatches, steps, slots, start)
    mare = versions.walk(schedule.pipemare(stages, microbatches, steps, slots, start))
    dream = versions.walk(schedule.pipedream(stages, microbatches, steps, slots, start))
    simulated = simulate(stages, microbatches, steps, slots, start)
    for s, stage in enumerate(simulated):
        read = by_step(stage.read_by_forward, microbatches)
        assert closed[s] == mare.forward[s] == dream.forward[s] == read
        assert mare.backward[s] == by_step(stage.version_at_backward, microbatches)
        assert mare.backward[s] == [[t] * microbatches for t in range(steps)]
        assert dream.backward[s] == read
    assert mare.recompute is None


@pytest.mark.parametrize("case", cases(40, seed=2), ids=str)
@pytest.mark.parametrize("defer", [0, 1, 3, 10])
def test_deferred_weight_gradients_make_every_pass_later_by_as_much(case, defer):
    stages, microbatches, steps, _, start = case
    plan = schedule.pipemare(stages, microbatches, steps, "alternating", start, defer=defer)
    walked = versions.walk(plan)
    forward, backward = versions.deferred_delays(stages, defer)
    for s, stage in enumerate(simulate(stages, microbatches, steps, "alternating", start, defer)):
        for read, seen, delay in (
            (walked.forward, stage.read_by_forward, forward[s]),
            (walked.backward, stage.version_at_backward, backward[s]),
        ):
            closed = [versions.forward_version(g, delay, microbatches, start) for g in range(steps * microbatches)]
            assert read[s] == by_step(seen, microbatches) == by_step(dict(enumerate(closed)), microbatches)
        for op, slots in ((Op.FORWARD, stage.forward_slot), (Op.WEIGHT_GRADIENT, stage.weight_gradient_slot)):
            assert {a.microbatch: a.slot for a in plan.columns[s] if a.op is op} == slots


def test_deferring_costs_delay_and_activations_and_leaves_the_discrepancy():
    stages, microbatches = 5, 2
    for defer in (0, 1, 4):
        plan = schedule.pipemare(stages, microbatches, 12, "alternating", defer=defer)
        assert plan.peak_activations() == [stages - s + defer for s in range(stages)]
        forward, backward = versions.deferred_delays(stages, defer)
        assert [f - b for f, b in zip(forward, backward, strict=True)] == versions.slot_delays(stages, "alternating")


def test_simulation_and_closed_forms_agree_over_5000_random_cases():
    rng = random.Random(3)
    for _ in range(5000):
        stages, microbatches, steps = rng.randint(1, 5), rng.randint(1, 4), rng.randint(1, 5)
        slots, start = rng.choice(SLOT_KINDS), rng.choice([0, 0, 1])
        defer = rng.choice([None, 0, 1, 2, 5]) if slots == "alternating" else None
        ahead = versions.slot_delays(stages, slots)
        late = [0] * stages
        if defer is not None:
            ahead, late = versions.deferred_delays(stages, defer)
        for s, stage in enumerate(simulate(stages, microbatches, steps, slots, start, defer)):
            for g in range(steps * microbatches):
                assert stage.read_by_forward[g] == versions.forward_version(g, ahead[s], microbatches, start)
                assert stage.version_at_backward[g] == versions.forward_version(g, late[s], microbatches, start)


@pytest.mark.parametrize("make", [schedule.gpipe, schedule.one_f_one_b])
@pytest.mark.parametrize(("stages", "microbatches", "steps"), [(1, 1, 3), (5, 3, 4), (3, 7, 2), (12, 2, 3)])
def test_flushed_schedules_read_the_current_version(make, stages, microbatches, steps):
    walked = versions.walk(make(stages, microbatches, steps))
    current = [[[t] * microbatches for t in range(steps)]] * stages
    assert walked.forward == walked.backward == current
    assert walked.kept == [1] * stages


@pytest.mark.parametrize("slots", SLOT_KINDS)
@pytest.mark.parametrize(("stages", "microbatches"), [(1, 1), (4, 2), (7, 3), (12, 9), (5, 1)])
def test_mean_delay_past_the_fill_is_l_over_n(stages, microbatches, slots):
    delays = versions.slot_delays(stages, slots)
    steps = max(delays) // microbatches + 4
    walked = versions.walk(schedule.pipemare(stages, microbatches, steps, slots))
    full = -(-max(delays) // microbatches)
    means = [fmean(t - version for t in range(full, steps) for version in walked.forward[s][t]) for s in range(stages)]
    assert means == pytest.approx([delay / microbatches for delay in delays], abs=1e-12)
    assert means == pytest.approx(versions.mean_delays(stages, microbatches, slots), abs=1e-12)


def test_delays_are_the_papers():
    # 2(P - i) + 1 for i = 1..4, and P - i.
    assert versions.slot_delays(4) == [7, 5, 3, 1]
    assert versions.slot_delays(4, "alternating") == [3, 2, 1, 0]
    assert versions.mean_delays(107, 32)[0] == 213 / 32


@pytest.mark.parametrize("slots", SLOT_KINDS)
@pytest.mark.parametrize(("stages", "microbatches"), [(1, 3), (4, 2), (6, 1), (7, 3), (9, 8)])
def test_pipedream_keeps_the_depth_and_the_current_version(stages, microbatches, slots):
    delays = versions.slot_delays(stages, slots)
    steps = 2 * max(delays) // microbatches + 4  # so long that it is full before it drains
    depths = [versions.history_depth(delay, microbatches) for delay in delays]
    assert depths == [(delay + microbatches - 1) // microbatches for delay in delays]
    assert versions.walk(schedule.pipedream(stages, microbatches, steps, slots)).kept == [d + 1 for d in depths]
    assert versions.walk(schedule.pipemare(stages, microbatches, steps, slots)).kept == [1] * stages


def test_depth_is_the_largest_delay_that_is_read():
    for stages, microbatches in ((5, 2), (8, 3), (3, 9)):
        delays = versions.slot_delays(stages)
        steps = max(delays) // microbatches + 4
        read = versions.forward_versions(stages, microbatches, steps)
        worst = [max(t - v for t in range(steps) for v in read[s][t]) for s in range(stages)]
        assert worst == [versions.history_depth(delay, microbatches) for delay in delays]


def test_after_the_warm_up_no_older_version_is_read_and_the_delay_grows():
    stages, microbatches, steps, start = 6, 2, 16, 5
    read = versions.forward_versions(stages, microbatches, steps, start=start)
    for s, delay in enumerate(versions.slot_delays(stages)):
        assert read[s][:start] == [[t] * microbatches for t in range(start)]
        assert min(v for step in read[s][start:] for v in step) == start
        lag = [fmean(t - v for v in read[s][t]) for t in range(start, steps)]
        assert lag[0] == 0 and lag == sorted(lag) and lag[-1] == delay / microbatches


@pytest.mark.parametrize("seed", range(12))
def test_recomputation_versions(seed):
    rng = random.Random(seed)
    stages, microbatches = rng.randint(1, 12), rng.randint(1, 9)
    segment, steps = rng.randint(1, stages), 2 * stages // microbatches + 4
    start = rng.randint(0, 2)
    walked = versions.walk(schedule.pipemare(stages, microbatches, steps, start=start, segment=segment))
    closed = versions.recompute_versions(stages, microbatches, steps, segment, start)
    for s, stage in enumerate(simulate(stages, microbatches, steps, "duplex", start)):
        last = min(s // segment * segment + segment, stages) - 1  # of the stages that are recomputed together
        for g, slot in stage.backward_slot.items():
            t, n = divmod(g, microbatches)
            if t < start:
                assert walked.recompute[s][t][n] is None
                continue
            before = slot - (2 * (last - s) + 1)
            updates = sum(done < before for done in stage.update_slot.values())
            assert walked.recompute[s][t][n] == closed[s][t][n] == updates
    assert walked.forward == versions.forward_versions(stages, microbatches, steps, start=start)


def test_wrong_kind_of_slots_names_the_right_ones():
    with pytest.raises(UserError, match=r"'duplx'.*duplex, alternating.*did you mean \"duplex\""):
        versions.slot_delays(4, "duplx")
