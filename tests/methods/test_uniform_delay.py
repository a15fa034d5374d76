"""Methods whose stages are all equally late, on problems that can be solved by hand."""

import math

import pytest
import torch

from pipemare_exp import methods
from pipemare_exp.errors import UserError
from pipemare_exp.pipeline.schedule.versions import slot_delays
from tests.methods.binding import bound
from tests.methods.quadratic import has_edge, path


@pytest.mark.parametrize(
    "name, options, delay",
    [("fixed_delay", {"delay": 1}, 1), ("fixed_delay", {"delay": 5}, 5), ("gradient_fifo", {"delay": 3}, 3)]
    + [("two_bw", {}, 1)],
)
def test_edge_of_stability_is_that_of_lemma_1(name, options, delay):
    """Gradients tau steps late: alpha lambda <= 2 sin(pi / (4 tau + 2))."""
    assert has_edge(lambda: methods.build(name, **options), 2 * math.sin(math.pi / (4 * delay + 2)))


def test_a_gradient_enters_d_steps_late():
    """The gradient of step k is k + 1 whatever the weights. In the warm-up of 2 steps it is used at once, then d = 3
    steps later, and while the queue fills there is none."""
    walked, _ = path(methods.build("gradient_fifo", delay=3, warmup_steps=2), 8, lambda w, t: (t + 1) * w)
    assert walked[:, 0].tolist() == [1 - x for x in (0, 1, 3, 3, 3, 3, 6, 10, 15)]


@pytest.mark.parametrize("slots", ["duplex", "alternating"])
def test_two_buffers_are_refused_exactly_where_a_forward_is_older_than_one_step(slots):
    for stages in range(1, 9):
        for N in range(1, 18):
            fits = slot_delays(stages, slots)[0] <= N
            assert (methods.find("two_bw").shape_refusal(stages, N, slots) is None) == fits


@pytest.mark.parametrize(
    "stages, N, slots, says",
    [
        (
            7,
            4,
            "duplex",
            "2P-1 = 13 .*P = 7 .*N = 4 .*4 versions old.*microbatches=13 or more, or pipeline.stages=2 or",
        ),
        (
            9,
            3,
            "alternating",
            "P-1 = 8 .*P = 9 .*N = 3 .*3 versions old.*microbatches=8 or more, or pipeline.stages=4 or",
        ),
    ],
)
def test_the_refusal_has_the_numbers_and_the_nearest_shapes_that_fit(stages, N, slots, says):
    with pytest.raises(UserError, match=says):
        bound("two_bw", stages, N, slots)
    nearest = int(says.split("microbatches=")[1].split()[0]), int(says.split("stages=")[1].split()[0])
    bound("two_bw", stages, nearest[0], slots), bound("two_bw", nearest[1], N, slots)
    for near in ((stages, nearest[0] - 1), (nearest[1] + 1, N)):
        with pytest.raises(UserError):
            bound("two_bw", *near, slots)


def test_version_of_two_bw_is_one_step_old_at_every_stage():
    method = bound("two_bw", 3, 6, warmup_steps=2)
    for step, version in enumerate([0, 1, 2, 2, 3, 4]):
        for n in range(6):
            assert [read.version for read in method.forward(step, n)] == [version] * 3
            assert method.backward(step, n) == method.forward(step, n)
    assert torch.equal(torch.tensor(method.rate_factors(3)), torch.ones(3))
