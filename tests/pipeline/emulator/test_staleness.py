"""The staleness of every stage, against whole copies of every version; and that looking changes nothing."""

import copy
import math

import pytest
import torch

from tests.pipeline.emulator.test_reference import CUTS, OPTIMIZERS
from tests.pipeline.reference import Trainer, dense_gradient
from tests.pipeline.toys import METHODS, cut, dense_net, emulator, loss, minibatches, named_units, rule, same

STEPS, RATE = 16, 0.02
EXAMPLE = torch.zeros(2, 5, dtype=torch.float64)


def norm(weights) -> float:
    return math.sqrt(sum(float((value**2).sum()) for value in weights.values()))


def less(some, others):
    return {name: some[name] - others[name] for name in some}


def expected(slow: Trainer, t: int, gradient) -> dict:
    """The four numbers of step `t` by their definitions, from the reference's copies."""
    N, table = slow.rule.microbatches, {"staleness": [], "t2_error": [], "update": [], "grad_norm": []}
    for s, names in enumerate(slow.stages):
        of = lambda weights, names=names: {name: weights[name] for name in names}  # noqa: E731
        now, later = of(slow.versions[t]), of(slow.versions[t + 1])
        forwards = [of(slow.versions[slow.rule.forward_version(t, n, s)]) for n in range(N)]
        backwards = [of(slow.backwards[t][n]) for n in range(N)]
        late = [norm(less(now, read)) for read in forwards]
        error = [norm(less(other, read)) for other, read in zip(backwards, forwards, strict=True)]
        table["staleness"].append(sum(late) / N / norm(now))
        table["t2_error"].append(sum(error) / sum(late) if sum(late) else None)
        table["update"].append(norm(less(later, now)) / norm(now))
        table["grad_norm"].append(norm(of(gradient[t])))
    return table


class Recording(Trainer):
    """Keeps what backwards read and the gradient before clipping, too."""

    def __init__(self, *args):
        super().__init__(*args)
        self.backwards, self.gradients = {}, {}

    def step(self, microbatches, rate):
        t = len(self.versions) - 1
        self.backwards[t] = [self._backward(t, n) for n in range(self.rule.microbatches)]
        return super().step(microbatches, rate)

    def _clip(self, total):
        self.gradients[len(self.versions) - 1] = dict(total)
        super()._clip(total)


@pytest.mark.parametrize(("slots", "stages", "N"), [("duplex", 4, 3), ("alternating", 4, 2), ("duplex", 2, 1)])
@pytest.mark.parametrize("label", METHODS)
def test_equals_what_whole_copies_give(label, slots, stages, N):
    net, described = dense_net(), rule(label, stages, N, slots)
    boundaries, optimizer = CUTS[4, stages], OPTIMIZERS["nesterov"]
    weights = {name: value.detach().clone() for name, value in net.named_parameters()}
    slow = Recording(weights, cut(named_units(net), boundaries), described, optimizer, dense_gradient)
    fast = emulator(net, EXAMPLE, boundaries, described, optimizer, N)
    for t, minibatch in enumerate(minibatches((5,), N, STEPS)):
        fast.step(minibatch, loss, RATE, diagnosed=True)
        slow.step(minibatch, RATE)
        seen, table = fast.observed(), expected(slow, t, slow.gradients)
        assert vars(seen.staleness).keys() == table.keys()
        for key, values in table.items():
            told = getattr(seen.staleness, key)
            assert [one is None for one in told] == [one is None for one in values], (t, key)
            assert [one or 0.0 for one in told] == pytest.approx([one or 0.0 for one in values], rel=1e-8), (t, key)
        assert seen.grad_norm == pytest.approx(norm(slow.gradients[t]), rel=1e-9)
        reads = [described.forward_version(t, n, s) for n in range(N) for s in range(stages)]
        assert seen.max_delay == t - min(reads)


@pytest.mark.parametrize("clip", [("stage", 0.01), ("global", 0.01)])
def test_the_norm_is_that_before_clipping(clip):
    seen = []
    for given in (None, clip):
        fast = emulator(dense_net(), EXAMPLE, [0, 2], rule("async", 2, 2, "duplex"), OPTIMIZERS["adam"], 2, clip=given)
        fast.step(next(minibatches((5,), 2, 1)), loss, RATE, observed=True)
        seen.append(fast.observed())
    assert seen[0] == seen[1] and seen[0].grad_norm > 0.05


def test_what_the_quotients_are_without_an_estimate():
    """None where every forward is current, 1 where the backward reads w_t, 0 where it reads what the forward read."""
    found = {}
    for label in ("gpipe", "async", "pipedream"):
        fast = emulator(dense_net(), EXAMPLE, [0, 1, 2, 3], rule(label, 4, 2, "duplex"), OPTIMIZERS["momentum"], 2)
        for minibatch in minibatches((5,), 2, 6):
            fast.step(minibatch, loss, RATE, diagnosed=True)
        found[label] = fast.observed().staleness.t2_error
    assert found == {"gpipe": [None] * 4, "async": [1.0] * 4, "pipedream": [0.0] * 4}


@pytest.mark.parametrize("more", [{}, {"beside": True}, {"history": "host"}])
@pytest.mark.parametrize("label", ["pipedream", "t1+t2"])
def test_diagnosing_changes_no_bit(label, more):
    ends = []
    for diagnosed in (False, True):
        net = dense_net()
        fast = emulator(net, EXAMPLE, [0, 1, 2, 3], rule(label, 4, 2, "duplex"), OPTIMIZERS["adamw"], 2, **more)
        losses = [
            fast.step(minibatch, loss, RATE, observed=diagnosed, diagnosed=diagnosed and step % 2 == 0)
            for step, minibatch in enumerate(minibatches((5,), 2, 12))
        ]
        ends.append(copy.deepcopy({"losses": losses, "state": fast.state_dict()}))
    assert same(*ends)


def test_a_step_that_was_not_observed_has_nothing_to_tell():
    fast = emulator(dense_net(), EXAMPLE, [0, 2], rule("async", 2, 2, "duplex"), OPTIMIZERS["momentum"], 2)
    fast.step(next(minibatches((5,), 2, 1)), loss, RATE)
    with pytest.raises(RuntimeError, match="observed=True"):
        fast.observed()
