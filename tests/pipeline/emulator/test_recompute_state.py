"""Recomputation: a checkpoint goes on bit for bit, a failing step leaves no trace, and what is refused."""

import copy
import io
import re

import pytest
import torch
from torch import nn

from pipemare_exp import methods
from pipemare_exp.errors import UserError
from tests.pipeline.emulator.recomputing import Pieced
from tests.pipeline.reference import SGD, Adam
from tests.pipeline.toys import METHODS, emulator, loss, minibatches, mixed_net, rule, same

OPTIMIZERS = [SGD(0.9, nesterov=True, weight_decay=0.01), Adam((0.9, 0.98), weight_decay=0.1, decoupled=True)]


def build(label, segment, seed=0):
    """Depths 6, 5, 4, 3, 2, 1 (P = 6, N = 2); with T3 three synchronous steps, so that the fill lies at 3 to 8."""
    net = Pieced(*mixed_net(torch.float32, seed))
    how = rule(label, 6, 2, "duplex", k=6, warmup=3)
    fast = emulator(net, torch.zeros(2, 2, 6, 6), range(6), how, OPTIMIZERS[segment % 2], 2, seed=3, segment=segment)
    return net, fast


def everything(net, fast):
    return copy.deepcopy({"model": dict(net.state_dict()), "emulator": fast.state_dict(), "flat": fast.flat_weights()})


@pytest.mark.parametrize("segment", [2, 3, 4])
@pytest.mark.parametrize("label", METHODS)
def test_resume_bit_for_bit(label, segment):
    """State after k steps through a file, in a new emulator around other weights; with evaluations in between."""
    data = list(minibatches((2, 6, 6), 2, 12, torch.float32))
    net, fast = build(label, segment)
    saved, losses = {}, []
    for step, minibatch in enumerate(data):
        if step in (1, 4, 6, 10):
            saved[step] = io.BytesIO()
            torch.save(fast.state_dict(), saved[step])
        losses.append(fast.step(minibatch, loss, 0.02))
    end = everything(net, fast)
    for k, file in saved.items():
        file.seek(0)
        other_net, other = build(label, segment, seed=99)
        for minibatch in data[:2]:  # it has a past of its own
            other.step(minibatch, loss, 0.02)
        other.load_state_dict(torch.load(file, weights_only=True))
        for minibatch, expected in zip(data[k:], losses[k:], strict=True):
            with other.evaluation() as model:
                model(data[0][0][0])
            assert torch.equal(other.step(minibatch, loss, 0.02), expected), k
        assert same(everything(other_net, other), end), k


@pytest.mark.parametrize("options", [{"segment": 3}, {"segment": None}], ids=str)
def test_state_of_other_segments_is_refused(options):
    """Its ring of estimates has other lengths."""
    _, fast = build("t2", 2)
    net = Pieced(*mixed_net(torch.float32))
    other = emulator(
        net, torch.zeros(2, 2, 6, 6), range(6), rule("t2", 6, 2, "duplex"), OPTIMIZERS[0], 2, seed=3, **options
    )
    before = everything(net, other)
    with pytest.raises(UserError, match="recompute|segment"):
        other.load_state_dict(fast.state_dict())
    assert same(before, everything(net, other))


def test_a_step_that_fails_leaves_batchnorm_as_it_was():
    net, fast = build("t2", 2)
    calls = []

    def failing(model, microbatch):
        calls.append(None)
        if len(calls) == 2:  # in the recomputation
            raise ZeroDivisionError
        return loss(model, microbatch)

    (minibatch,) = minibatches((2, 6, 6), 2, 1, torch.float32)
    with pytest.raises(ZeroDivisionError):
        fast.step(minibatch, failing, 0.1)
    assert all(m.track_running_stats for m in net.modules() if isinstance(m, nn.BatchNorm2d))


@pytest.mark.parametrize("segment", [None, 2])
@pytest.mark.parametrize("where", ["around the step", "in the loss"])
def test_autocast_is_refused(segment, where):
    """Its cast copies of the forward's weights would be what the backward reads."""
    _, fast = build("async", segment) if segment else (None, None)
    if fast is None:
        net = mixed_net(torch.float32)
        fast = emulator(net, torch.zeros(2, 2, 6, 6), range(6), rule("async", 6, 2, "duplex"), SGD(), 2)
    (minibatch,) = minibatches((2, 6, 6), 2, 1, torch.float32)

    def inside(model, microbatch):
        with torch.autocast("cpu", torch.bfloat16):
            return loss(model, microbatch)

    with pytest.raises(UserError, match="autocast"):
        if where == "in the loss":
            fast.step(minibatch, inside, 0.1)
        else:
            with torch.autocast("cpu", torch.bfloat16):
                fast.step(minibatch, loss, 0.1)


class Wide(Pieced):
    per_piece = 2


def refused(net=None, boundaries=range(6), how=None, says=(), **options):
    net = Pieced(*mixed_net(torch.float32)) if net is None else net
    how = rule("async", len(boundaries), 2, "duplex") if how is None else how
    with pytest.raises(UserError) as error:
        emulator(net, torch.zeros(2, 2, 6, 6), boundaries, how, SGD(), 2, **options)
    for pattern in says:
        assert re.search(pattern, str(error.value)), (pattern, str(error.value))


def test_refused_where_a_segment_begins_inside_a_piece():
    """Pieces of two units begin at units 0, 2, 4; three stages to a segment would begin at unit 3."""
    net = Wide(*mixed_net(torch.float32))
    units = ["0", "1", "4", "5", "9", "11"]
    refused(net, segment=3, says=["3", rf"\b{units[3]}\b", "piece", r"0, 2, 4"])
    refused(net, boundaries=[0, 1, 4], segment=1, says=["1", "piece"])
    # two stages to a segment begin where pieces do, but there are more stages than pieces
    refused(net, segment=2, says=["6 stages", "3 pieces"])
    emulator(net, torch.zeros(2, 2, 6, 6), [0, 2, 4], rule("async", 3, 2, "duplex"), SGD(), 2, segment=2)


@pytest.mark.parametrize("label", ["gpipe", "pipedream", "async", "t2"])
def test_refused_in_alternating_slots(label):
    how = rule(label, 6, 2, "alternating")
    refused(how=how, segment=2, says=["alternating", "duplex", "delay"])


def test_refused_with_split_stages():
    refused(segment=2, split=2, says=["split", "2"])


def test_refused_with_random_delays():
    refused(how=methods.build("hogwild"), segment=2, says=["(?i)hogwild", "random|slot"])


@pytest.mark.parametrize("segment", [0, -1, 7])
def test_refused_outside_the_pipeline(segment):
    refused(segment=segment, says=[str(segment), "1 to 6"])


def test_refused_without_pieces():
    refused(net=mixed_net(torch.float32), segment=2, says=["pieces"])


def test_pieces_that_share_a_unit_or_leave_one_out_are_refused():
    class Short(Pieced):
        def pieces(self):
            return super().pieces()[:-1]

    class Twisted(Pieced):
        def pieces(self):
            made = super().pieces()
            return [made[1], made[0], *made[2:]]

    for kind in (Short, Twisted):
        net = kind(*mixed_net(torch.float32))
        with pytest.raises(ValueError, match="piece"):
            emulator(net, torch.zeros(2, 2, 6, 6), range(6), rule("async", 6, 2, "duplex"), SGD(), 2, segment=2)
