"""Costs: published ratios, numbers worked out here, and agreement with what walking a schedule counts."""

from __future__ import annotations

import pytest

from pipemare_exp import methods
from pipemare_exp.errors import UserError
from pipemare_exp.pipeline.schedule import costs, versions
from pipemare_exp.pipeline.schedule.orders import gpipe, pipedream, pipemare


def test_published_ratios():
    assert costs.gpipe_ratio(107, 32) == 4.3125
    assert costs.gpipe_ratio(107, 8) == 14.25
    assert costs.memory_ratio(107, 32) == (2 + 107 / 32) / 2
    assert f"{costs.memory_ratio(107, 32):.2f}" == "2.67"
    assert costs.stash_uniform(107, 32) == 3.34375


def test_memory_ratio_counts_what_it_says():
    assert costs.memory_ratio(107, 32, t2=True) == pytest.approx((2 + 107 / 32) / 3)
    assert costs.memory_ratio(107, 32, "adamw") == pytest.approx((3 + 107 / 32) / 3)
    assert costs.memory_ratio(107, 32, "sgd") == pytest.approx(1 + 107 / 32)


@pytest.mark.parametrize(("stages", "microbatches"), [(1, 1), (4, 2), (9, 5)])
def test_utilization_is_what_schedules_have(stages, microbatches):
    assert methods.costs()["gpipe"].utilization(stages, microbatches) == gpipe(stages, microbatches, 2).utilization()
    inverse = pytest.approx(1 / costs.gpipe_ratio(stages, microbatches), rel=1e-12)
    assert methods.costs()["gpipe"].utilization(stages, microbatches) == inverse
    for method, make in (("pipedream", pipedream), ("pipemare", pipemare), ("pipemare_no_t2", pipemare)):
        plan = make(stages, microbatches, 2 * stages // microbatches + 2)
        assert methods.costs()[method].utilization(stages, microbatches) == plan.utilization(steady=True)


def test_modelled_time_is_the_flushed_schedules_length():
    # P = 4, N = 2: a flushed step takes 5/2; in slots 2 (N + P - 1) = 10 against 2 N = 4 operations.
    assert costs.modelled_time(4, 2, 10, 3) == pytest.approx(3 * 2.5 + 7)
    assert costs.modelled_time(4, 2, 10) == 10
    assert gpipe(4, 2, 3).length / (2 * 2) == costs.modelled_time(4, 2, 3, 3)
    with pytest.raises(UserError, match="flushed_steps=11 with steps=10"):
        costs.modelled_time(4, 2, 10, 11)


@pytest.mark.parametrize(("stages", "microbatches"), [(1, 1), (4, 2), (5, 3), (9, 4)])
@pytest.mark.parametrize(("slots", "a_step"), [("duplex", 1), ("alternating", 2)])
def test_refill_time_is_what_schedules_take_beyond_their_steps(stages, microbatches, slots, a_step):
    steps = 2 * stages + 3
    length = pipemare(stages, microbatches, steps, slots).length / (a_step * microbatches)
    assert length - steps == pytest.approx(costs.refill_time(stages, microbatches, slots))


def test_memory_of_every_method():
    sizes = [10, 0, 30]  # tau = 5/2, 3/2, 1/2
    table = {method: methods.costs()[method].memory(3, 2, "adamw", sizes=sizes) for method in methods.costs()}
    for method, row in table.items():
        assert (row.weights, row.gradients, row.optimizer) == (2 if method == "two_bw" else 1, 1, 2)
        if method in ("gpipe", "pipedream", "pipemare", "pipemare_no_t2"):
            assert row.buffers == (method == "pipemare")
        if not methods.costs()[method].stash:
            assert row.stash_uniform == row.stash_model == 0
    assert table["pipedream"].stash_uniform == pytest.approx(3 / 2)
    assert table["pipedream"].stash_model == pytest.approx((2.5 * 10 + 0.5 * 30) / 40)
    assert table["pipedream"].total() == pytest.approx(5.0)
    assert table["pipemare"].total() == 5
    assert methods.costs()["pipedream"].memory(3, 2).stash_model is None
    assert methods.costs()["pipedream"].memory(3, 2).total() == pytest.approx(3 + 1.5)
    assert [costs.optimizer_memory(name) for name in ("sgd", "sgd_momentum", "adamw")] == [0, 1, 2]


def test_stash_is_the_mean_age_of_what_pipedream_keeps():
    """Averaged over the microbatches, a backward reads weights tau_s steps old."""
    stages, microbatches, steps = 6, 4, 12
    walked = versions.walk(pipedream(stages, microbatches, steps))
    ages = [t - v for s in range(stages) for t in range(4, steps) for v in walked.backward[s][t]]
    assert sum(ages) / len(ages) == pytest.approx(costs.stash_uniform(stages, microbatches))
    assert costs.stash_model([7] * stages, microbatches) == pytest.approx(stages / microbatches)
    assert costs.stash_uniform(5, 4, "alternating") == pytest.approx((0 + 1 + 2 + 3 + 4) / 5 / 4)


@pytest.mark.parametrize("stages", [1, 2, 5, 8, 13])
def test_activations_are_what_schedules_hold(stages):
    microbatches, steps = 3, stages + 3
    for method, make in (("pipedream", pipedream), ("pipemare", pipemare)):
        for slots in ("duplex", "alternating"):
            held = sum(make(stages, microbatches, steps, slots).peak_activations())
            assert methods.costs()[method].activations(stages, microbatches, slots) == held
    assert methods.costs()["pipemare"].activations(stages, microbatches) == stages**2
    held = max(gpipe(stages, microbatches, 2).activations())
    assert methods.costs()["gpipe"].activations(stages, microbatches) == held == stages * microbatches
    for segment in range(1, stages + 1):
        plan = pipemare(stages, microbatches, steps, segment=segment)
        assert costs.activations_recomputed(stages, segment) == max(plan.activations())
        if stages % segment == 0:
            expected = stages * segment + stages**2 // segment - stages
            assert costs.activations_recomputed(stages, segment) == expected


def test_sqrt_segment():
    for root in (1, 2, 3, 10):
        assert costs.sqrt_segment(root**2) == root
        assert costs.activations_recomputed(root**2, root) == 2 * root**3 - root**2
    for stages in (2, 3, 7, 12, 43, 107):
        held = costs.activations_recomputed(stages, costs.sqrt_segment(stages))
        below = int(stages**0.5)
        assert held == min(costs.activations_recomputed(stages, size) for size in (below, below + 1))
        assert held <= stages**2


@pytest.mark.parametrize(("segment", "microbatches"), [(1, 1), (4, 2), (3, 8), (5, 3)])
def test_recompute_ring_covers_what_recomputation_reads(segment, microbatches):
    stages = 2 * segment
    steps = 2 * stages // microbatches + 5
    read = versions.recompute_versions(stages, microbatches, steps, segment)
    oldest = max(t - v for t in range(steps) for v in read[0][t])
    assert costs.recompute_ring(segment, microbatches) == oldest == -(-(2 * segment - 1) // microbatches)


def test_emulator_memory_counts_rings_estimates_and_delta():
    # Rings of 3 and 2 versions; the last stage has no past, and no ring without an estimate.
    assert costs.emulator_memory([10, 20, 30], [2, 1, 0]) == 3 * 10 + 2 * 20
    assert costs.emulator_memory([10, 20, 30], [2, 1, 0], [True, True, True]) == 3 * 10 + 2 * 20 + 30
    assert costs.emulator_memory([10, 20, 30], [2, 1, 0], delta=True) == 3 * 10 + 2 * 20 + 60
    assert costs.emulator_memory([10, 20, 30], [2, 1, 0], delta=True, staged=True) == 3 * 10 + 2 * 20 + 60 + 120
    with pytest.raises(ValueError):
        costs.emulator_memory([10, 20], [1])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: methods.costs()["pipedream"].memory(3, 2, "adam"), "adam.*sgd_momentum, adamw"),
        (lambda: methods.costs()["pipedream"].memory(3, 2, sizes=[1, 2]), "2 stage sizes for 3 stages"),
    ],
)
def test_wrong_names_are_named(call, words):
    with pytest.raises(UserError, match=words):
        call()
