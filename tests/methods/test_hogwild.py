"""Hogwild!-style delays: which versions are read, their distribution, T1 with the law's mean, refusals."""

import copy
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy import stats

from pipemare_exp import methods
from pipemare_exp.errors import UserError
from pipemare_exp.methods.hogwild import truncated_mean
from pipemare_exp.pipeline.shape import Shape
from pipemare_exp.seeding import generator
from tests.methods.binding import bound, tau


def law(scale, limit):
    return stats.truncexpon(b=limit / scale, scale=scale)


@pytest.mark.parametrize("slots", ["duplex", "alternating"])
def test_default_scale_and_bound(slots):
    """mu_i = tau_i and d_max,i = ceil(3 mu_i), in exact arithmetic; kept are d_max,i past versions."""
    for stages in (1, 2, 5, 9, 107):
        for N in range(1, 34):
            method = bound("hogwild", stages, N, slots)
            between = [2 * (stages - i) + 1 if slots == "duplex" else stages - i for i in range(1, stages + 1)]
            scales = [Fraction(slots_between, N) for slots_between in between]
            limits = [math.ceil(3 * scale) for scale in scales]
            assert [depth or 0 for depth in method.depths()] == limits
            means = [truncated_mean(float(mu), limit) for mu, limit in zip(scales, limits, strict=True)]
            assert method.mean_delays == pytest.approx(means, rel=1e-12)


def delays(method, first, steps, N):
    """Read off the method: t - version, [step, microbatch, stage]."""
    return np.array(
        [[[t - read.version for read in method.forward(t, n)] for n in range(N)] for t in range(first, first + steps)]
    )


@pytest.mark.parametrize("options", [{}, {"delay_scale": 1.7}, {"max_delay": 4}, {"delay_scale": 0.5, "max_delay": 9}])
def test_rounded_delays_follow_the_law(options):
    """P(d = k) = F(k + 1/2) - F(k - 1/2), stage by stage; independent over steps and stages."""
    stages, N, steps = 4, 2, 6000
    method = bound("hogwild", stages, N, seed=5, **options)
    late = delays(method, 100, steps, N)[:, 0]  # beyond any bound, so that nothing is clamped
    for s, delay in enumerate(tau(stages, N, "duplex")):
        scale = options.get("delay_scale", 1.0) * delay
        limit = options.get("max_delay", math.ceil(3 * scale))
        edges = np.clip(np.arange(limit + 2) - 0.5, 0, limit)
        expected = np.diff(law(scale, limit).cdf(edges)) * steps
        counts = np.bincount(late[:, s], minlength=limit + 1)
        assert len(counts) == limit + 1
        enough = expected >= 5
        seen = [*counts[enough], counts[~enough].sum()] if (~enough).any() else counts
        due = [*expected[enough], expected[~enough].sum()] if (~enough).any() else expected
        assert stats.chisquare(seen, due).pvalue > 1e-3, (s, counts, expected)
        if counts.max() < 0.95 * steps:
            assert abs(np.corrcoef(late[1:, s], late[:-1, s])[0, 1]) < 5 / math.sqrt(steps)
    varied = [s for s in range(stages) if late[:, s].std() > 0.2]
    assert len(varied) >= 2
    for a, b in zip(varied, varied[1:], strict=False):
        assert abs(np.corrcoef(late[:, a], late[:, b])[0, 1]) < 5 / math.sqrt(steps)


def test_a_delay_for_every_step_or_every_microbatch():
    by_step, by_microbatch = (
        delays(bound("hogwild", 5, 4, seed=1, draw=draw), 50, 300, 4) for draw in ("step", "microbatch")
    )
    assert (by_step == by_step[:, :1]).all()
    assert (by_microbatch != by_microbatch[:, :1]).any(axis=(0, 1))[:3].all()
    # as many different microbatches of one step as of two steps: a draw of its own for each
    within = (by_microbatch[:, 0, 0] != by_microbatch[:, 1, 0]).mean()
    between = (by_microbatch[1:, 0, 0] != by_microbatch[:-1, 0, 0]).mean()
    assert abs(within - between) < 0.12


def exact(uniform, scale, limit):
    return round(-scale * math.log1p(uniform * math.expm1(-limit / scale))) if limit else 0


@pytest.mark.parametrize("draw", ["step", "microbatch"])
@pytest.mark.parametrize("M", [0, 6])
def test_versions_are_clamped(M, draw):
    """The draw of a step clamped at M: never a version before it, nor, without warm-up, before 0."""
    stages, N = 6, 2
    method, other = (bound("hogwild", stages, N, seed=3, warmup_steps=M, draw=draw) for _ in range(2))
    clamped = 0
    for t in range(M + 40):
        chosen = None if t < M else other.delays_at(t)
        for n in range(N):
            read = [r.version for r in method.forward(t, n)]
            assert all(r.buffer is None and r.ring is None for r in method.forward(t, n))
            if t < M:
                assert read == [t] * stages
                continue
            assert read == [max(M, t - d) for d in chosen[n]]
            assert all(0 <= d <= limit for d, limit in zip(chosen[n], method.depths(), strict=True))
            clamped += sum(t - d < M for d in chosen[n])
    assert clamped > 5  # the case occurs


def test_nothing_is_drawn_in_the_warm_up():
    """So the first delays do not depend on its length."""
    first = [bound("hogwild", 5, 2, seed=3, warmup_steps=M) for M in (0, 9)]
    for t in range(9):
        for n in range(2):
            first[1].forward(t, n), first[1].backward(t, n), first[1].rate_factors(t)
    assert [first[0].delays_at(t) for t in range(20)] == [first[1].delays_at(9 + t) for t in range(20)]


@pytest.mark.parametrize("draw", ["step", "microbatch"])
def test_backward_reads_the_same_or_the_current_version(draw):
    same, current = (bound("hogwild", 5, 3, seed=2, backward=kind, draw=draw) for kind in ("same", "current"))
    for t in range(30):
        for n in range(3):
            assert same.backward(t, n) == same.forward(t, n) == current.forward(t, n)
            assert [read.version for read in current.backward(t, n)] == [t] * 5
            assert all(read.buffer is None for read in current.backward(t, n))


def test_asking_again_draws_nothing():
    method, once = (bound("hogwild", 5, 3, seed=2, draw="microbatch") for _ in range(2))
    for t in range(20):
        expected = once.delays_at(t)
        for _ in range(3):
            for n in (2, 0, 1):
                assert [max(0, t - d) for d in expected[n]] == [read.version for read in method.forward(t, n)]


def test_seeds_and_other_draws():
    """The generator is its own: neither torch's nor another seed's."""
    a, b = bound("hogwild", 6, 1, seed=1), bound("hogwild", 6, 1, seed=1)
    other, rows = bound("hogwild", 6, 1, seed=2), []
    before = torch.get_rng_state()
    for t in range(20):
        rows.append(a.delays_at(t))
    assert torch.equal(before, torch.get_rng_state())
    for t in range(20):
        torch.rand(t)
        assert b.delays_at(t) == rows[t]
    assert [other.delays_at(t) for t in range(20)] != rows


@pytest.mark.parametrize("slots", ["duplex", "alternating"])
def test_the_stage_without_a_delay(slots):
    """The last stage of an alternating pipeline has tau = 0: it always reads w_t and keeps nothing."""
    method = bound("hogwild", 4, 2, slots, seed=1)
    late = delays(method, 60, 200, 2)
    assert (late[:, :, 3] == 0).all() == (slots == "alternating")
    assert (method.depths()[3] is None) == (slots == "alternating")


@pytest.mark.parametrize("options", [{"max_delay": 0}, {"delay_scale": 0.0}])
def test_no_delay_at_all(options):
    method = bound("hogwild", 4, 2, **options)
    assert (delays(method, 0, 20, 2) == 0).all() and not any(method.depths())


@pytest.mark.parametrize("options", [{"max_delay": 50}, {"delay_scale": 1e-3}, {"max_delay": 10_000}])
def test_a_bound_far_above_the_scale(options):
    """Then the law is an exponential: its mean is mu. The last stage has mu = 1/32, or less."""
    method = bound("hogwild", 3, 32, **options)
    scales = [options.get("delay_scale", 1.0) * delay for delay in tau(3, 32, "duplex")]
    assert method.mean_delays == pytest.approx(scales, rel=1e-9)


@pytest.mark.parametrize("options", [{}, {"delay_scale": 2.5}, {"max_delay": 3}])
@pytest.mark.parametrize("K, M", [(10, 0), (7, 4)])
def test_t1_takes_the_mean_of_the_truncated_law(K, M, options):
    """alpha = alpha_base / max(mean, 1)^p, p = 1 - min((t-M)/K, 1); mean before rounding, clamped to 1 step."""
    stages, N = 7, 3
    method = bound("hogwild", stages, N, lr_rescheduling_steps=K, warmup_steps=M, **options)
    means = []
    for delay in tau(stages, N, "duplex"):
        scale = options.get("delay_scale", 1.0) * delay
        limit = options.get("max_delay", math.ceil(3 * scale))
        means.append(float(law(scale, limit).mean()))
    assert means[0] > 1 > means[-1]
    for t in range(M + K + 4):
        p = 0 if t < M else 1 - min((t - M) / K, 1)
        assert method.rate_factors(t) == pytest.approx([1 / max(mean, 1.0) ** p for mean in means], rel=1e-9)
    assert method.rate_factors(M)[0] < 0.9


def test_without_t1_no_rate_is_changed():
    assert all(bound("hogwild", 6, 1).rate_factors(t) == [1.0] * 6 for t in range(9))


@pytest.mark.parametrize("draw", ["step", "microbatch"])
def test_the_generator_is_in_the_checkpoint(draw):
    method = bound("hogwild", 6, 2, seed=4, draw=draw)
    for t in range(13):
        method.delays_at(t)
    state = copy.deepcopy(method.state_dict())
    expected = [method.delays_at(t) for t in range(13, 40)]
    other = bound("hogwild", 6, 2, seed=77, draw=draw)
    for t in range(14):  # it has drawn for step 13 already, something else
        other.delays_at(t)
    other.load_state_dict(state)
    assert [other.delays_at(t) for t in range(13, 40)] == expected


def test_delays_come_from_one_uniform_number_each():
    """Inverse-CDF sampling: one number of [0, 1) a stage and step, in order, from the keyed generator."""
    method = bound("hogwild", 4, 1, seed=9)
    uniform = torch.rand(50, 4, dtype=torch.float64, generator=generator("cpu", 9, "hogwild"))
    for t in range(50):
        expected = [
            exact(float(u), delay, math.ceil(3 * delay))
            for u, delay in zip(uniform[t], tau(4, 1, "duplex"), strict=True)
        ]
        assert method.delays_at(t) == [expected]


@pytest.mark.parametrize(
    "options, says",
    [
        ({"backward": "sam"}, ["sam", "same, current", 'did you mean "same"']),
        ({"backward": "forward"}, ["forward", "same, current"]),
        ({"draw": "steps"}, ["steps", "step, microbatch", 'did you mean "step"']),
        ({"delay_scale": -0.5}, ["-0.5"]),
        ({"delay_scale": math.nan}, ["nan"]),
        ({"delay_scale": math.inf}, ["inf"]),
        ({"max_delay": -1}, ["-1"]),
        ({"max_delay": 2.5}, ["2.5"]),
        ({"lr_rescheduling_steps": -3}, ["-3"]),
        ({"warmup_steps": -2}, ["-2"]),
    ],
    ids=str,
)
def test_refusals(options, says):
    with pytest.raises(UserError) as error:
        methods.build("hogwild", **options)
    for word in says:
        assert word in str(error.value)


def test_recomputation_is_refused_with_the_reason():
    method = methods.build("hogwild")
    with pytest.raises(UserError, match="hogwild.*recomputation.*slots"):
        method.bind(Shape(4, 2, "duplex", 2), [torch.zeros(4) for _ in range(4)])


@pytest.mark.parametrize("options", [{"delay_scale": 0.1}, {"delay_scale": 0.5}, {"max_delay": 4}])
def test_stochastic_rounding_follows_its_law_and_keeps_the_mean(options):
    """P(d = k) = E[max(0, 1 - |x - k|)], by integrating the density; its mean is that of the law, which T1 takes."""
    stages, N, steps = 3, 2, 6000
    method = bound("hogwild", stages, N, seed=5, rounding="stochastic", **options)
    late = delays(method, 100, steps, N)[:, 0]
    for s, delay in enumerate(tau(stages, N, "duplex")):
        scale = options.get("delay_scale", 1.0) * delay
        limit = options.get("max_delay", math.ceil(3 * scale))
        x = np.linspace(0, limit, 200_001)
        density = law(scale, limit).pdf(x)
        expected = np.array(
            [np.trapezoid(density * np.clip(1 - abs(x - k), 0, None), x) for k in range(limit + 1)]
        ) * steps  # fmt: skip
        counts = np.bincount(late[:, s], minlength=limit + 1)
        kept = expected >= 5
        seen = [*counts[kept], counts[~kept].sum()] if (~kept).any() else counts
        due = [*expected[kept], steps - expected[kept].sum()] if (~kept).any() else expected
        assert stats.chisquare(seen, due, sum_check=False).pvalue > 1e-3, (s, counts, expected)
        assert abs(late[:, s].mean() - method.mean_delays[s]) < 4 * late[:, s].std() / math.sqrt(steps)
    assert type(method).drawn_delays(tau(stages, N, "duplex"), method.options) == method.mean_delays


def test_nearest_is_the_default_and_draws_what_it_always_drew():
    plain, named = bound("hogwild", 5, 2, seed=3), bound("hogwild", 5, 2, seed=3, rounding="nearest")
    assert [plain.delays_at(t) for t in range(30)] == [named.delays_at(t) for t in range(30)]
    assert plain.options.rounding is None


def test_the_stochastic_draws_go_on_from_a_checkpoint():
    method, other = (bound("hogwild", 6, 2, seed=seed, rounding="stochastic") for seed in (4, 77))
    for t in range(9):
        method.delays_at(t)
    state = copy.deepcopy(method.state_dict())
    expected = [method.delays_at(t) for t in range(9, 20)]
    other.load_state_dict(state)
    assert [other.delays_at(t) for t in range(9, 20)] == expected
