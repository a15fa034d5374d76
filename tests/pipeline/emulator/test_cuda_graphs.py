"""Captured microbatches against the plain path, bit for bit; without a GPU by the stand-in that calls."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

from pipemare_exp.errors import UserError
from pipemare_exp.pipeline.emulator import cuda_graphs as graphs
from pipemare_exp.pipeline.emulator.ways import Captured, Copying, Execution, choose
from tests.pipeline.reference import SGD
from tests.pipeline.toys import METHODS, emulator, loss, minibatches, mixed_net, rule, same

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
SHAPE = (2, 6, 6)
N = 4


@pytest.fixture(autouse=True)
def _deterministic():
    before = torch.backends.cudnn.deterministic
    torch.backends.cudnn.deterministic = True
    yield
    torch.backends.cudnn.deterministic = before


def net(dropout: float = 0.0) -> nn.Module:
    made = mixed_net(torch.float32)
    for module in made.modules():
        if isinstance(module, nn.Dropout):
            module.p = dropout
    return made


def moved(minibatch, device):
    return [None if one is None else (one[0].to(device), one[1].to(device), one[2]) for one in minibatch]


def batches(steps, device="cpu"):
    """Uneven microbatches, some empty, each minibatch given three times so that shapes return."""
    return [moved(one, device) for one in minibatches(SHAPE, N, steps, torch.float32) for _ in range(3)]


def built(label, device="cpu", choice="off", dropout=0.0):
    example = torch.zeros(2, *SHAPE, device=device)
    described = rule(label, 6, N, "duplex", warmup=3)
    how = described, SGD(0.9, weight_decay=0.01), N
    return emulator(net(dropout).to(device), example, [0, 1, 2, 3, 4, 5], *how, graphs=choice)


def trained(made, steps, device):
    losses = [made.step(one, loss, 0.02) for one in batches(steps, device)]
    return [float(one) for one in losses]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("label", METHODS)
def test_captured_steps_are_the_eager_ones(label, device):
    plain, captured = built(label, device), built(label, device, "on")
    assert trained(plain, 6, device) == trained(captured, 6, device)
    assert captured.way.captures.captured > 6  # sizes, and the counts of minibatches, that came twice
    assert same(copy.deepcopy(plain.state_dict()), captured.state_dict())
    assert same(plain.flat.gradients, captured.flat.gradients)


@pytest.mark.parametrize("device", DEVICES)
def test_a_capture_leaves_no_trace(device):
    """Gradients, running statistics and the random state are the same after it, though it runs the microbatch."""
    made = built("t1+t2", device, "on")
    (one, *_), *_ = batches(1, device)
    made.step([one] * N, loss, 0.02)
    made.flat.gradients.normal_()
    state, gradients, draw = copy.deepcopy(made.state_dict()), made.flat.gradients.clone(), torch.get_rng_state()
    before = made.way.captures.captured
    other = (one[0][:1].clone(), one[1][:1].clone(), 77)
    assert made.way.captures.find(other, loss) is None and made.way.captures.find(other, loss) is not None
    assert made.way.captures.captured == before + 1
    assert same(state, made.state_dict()) and torch.equal(gradients, made.flat.gradients)
    assert torch.equal(draw, torch.get_rng_state())


@pytest.mark.parametrize("device", DEVICES)
def test_evaluation_between_captured_steps_is_eager_and_changes_nothing(device):
    plain, captured = built("t1+t2", device), built("t1+t2", device, "on")
    inputs = torch.randn(3, *SHAPE, device=device)
    for one in batches(4, device):
        values = []
        for made in (plain, captured):
            made.step(one, loss, 0.02)
            with made.evaluation() as model:
                values.append(model(inputs))
        assert torch.equal(*values)


@pytest.mark.parametrize("device", DEVICES)
def test_a_checkpoint_taken_in_one_way_goes_on_in_the_other(device):
    plain, captured = built("t1+t2", device), built("t1+t2", device, "on")
    trained(plain, 3, device)
    captured.load_state_dict(copy.deepcopy(plain.state_dict()))
    assert trained(plain, 3, device) == trained(captured, 3, device)


def test_a_graph_keeps_the_numbers_of_its_minibatch():
    """The same shapes under another count are another capture, not the first one's normalisation."""
    made, plain = built("gpipe", choice="on"), built("gpipe")
    images, labels = torch.randn(2, *SHAPE), torch.tensor([0, 1])
    for count in (8, 8, 8, 6, 6, 6):
        minibatch = [(images, labels, count)] * N
        assert float(made.step(minibatch, loss, 0.01)) == float(plain.step(minibatch, loss, 0.01))
    assert made.way.captures.captured == 2


def test_dropout_that_draws_is_not_captured():
    assert type(built("t1+t2", choice="on", dropout=0.0).way) is Captured
    with pytest.raises(UserError, match="dropout"):
        built("t1+t2", choice="on", dropout=0.2)
    assert type(built("t1+t2", choice="auto", dropout=0.2).way) is Copying


def test_auto_is_off_on_a_cpu():
    assert type(built("t1+t2", choice="auto").way) is Copying


def test_recomputation_and_a_wrong_choice_are_refused():
    made = built("gpipe")
    with pytest.raises(UserError, match="recomputation"):
        choose(Execution(graphs="on"), replace(made.pipeline, segment=2), made.flat, draws=False)
    with pytest.raises(UserError, match="auto, on, off"):
        Execution(graphs="yes")


def test_what_cannot_be_kept_runs_eagerly_or_is_refused():
    made = built("gpipe")
    lenient, strict = (graphs.Captures(made.model, made.flat, required=required) for required in (False, True))
    odd = (torch.zeros(2, *SHAPE), torch.tensor([0, 1]), object())
    assert lenient.find(odd, loss) is None
    with pytest.raises(UserError, match="object"):
        strict.find(odd, loss)


def test_more_shapes_than_the_limit_run_eagerly():
    made = built("gpipe")
    few = graphs.Captures(made.model, made.flat, required=False, limit=2)
    for size in (1, 2, 3):
        one = (torch.zeros(size, *SHAPE), torch.zeros(size, dtype=torch.int64), 4)
        assert few.find(one, loss) is None
        assert (few.find(one, loss) is None) == (size == 3)
    assert few.captured == 2


def test_no_graph_of_autograd_is_left_when_a_capture_begins(monkeypatch):
    """What adds to a gradient keeps the stream of the first graph that it was part of, as long as one lives."""
    made = built("t1+t2", choice="on")
    weight = made.model[0].weight

    def adder():
        return weight.expand_as(weight).grad_fn.next_functions[0][0]

    def marking(model, microbatch):
        value = loss(model, microbatch)
        adder().metadata["met"] = True
        assert "met" in adder().metadata  # while the graph lives
        return value

    left = []
    make = graphs.Captures._make

    def noting(self, *arguments):
        left.append("met" in adder().metadata)
        return make(self, *arguments)

    monkeypatch.setattr(graphs.Captures, "_make", noting)
    for one in batches(2):
        made.step(one, marking, 0.02)
    assert left and not any(left)
