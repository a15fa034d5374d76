"""The ResNets: unit counts, shapes, and pieces whose composition is the model, bit for bit."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from pipemare_exp import models
from pipemare_exp.errors import UserError
from pipemare_exp.models.resnet import IMAGES, SPECS
from pipemare_exp.pipeline.model.units import pieces, weight_units

UNITS = {
    "digits_resnet": 43,
    "resnet20": 43,  # 19 + 2 convolutions, as many BatchNorms, 1 linear layer
    "resnet32": 67,
    "resnet56": 115,
    "resnet110": 223,
    "resnet18": 41,  # torchvision's: 20 convolutions, 20 BatchNorms, 1 linear layer
    "resnet50": 107,  # the paper's count: 53 + 53 + 1
    "resnet152": 311,
}
# Narrow ones stand for their wide namesakes: the code that cuts them is the same and they run in a moment.
CUT = [("digits_resnet", None), ("resnet20", 4), ("resnet18", 4), ("resnet50", 4)]


def make(name: str, width: int | None) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(3)
    model = models.build(name, width=width)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):  # as initialised, all BatchNorms are alike and a mix-up would not show
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias)
            nn.init.normal_(module.running_mean)
            nn.init.uniform_(module.running_var, 0.5, 2)
    return model, torch.randn(4, *models.images(name))


@pytest.mark.parametrize("name", SPECS)
def test_number_of_weight_units(name):
    assert len(models.unit_sizes(name)) == UNITS[name]


def test_unit_sizes_are_those_of_a_real_run_in_forward_order():
    model, images = make("digits_resnet", None)
    units = weight_units(model.eval(), lambda module: module(images))
    assert models.unit_sizes("digits_resnet") == [unit.numel for unit in units]
    assert sum(unit.numel for unit in units) == sum(p.numel() for p in model.parameters())
    assert units[0].parameters == ("conv1.weight",) and units[-1].parameters == ("fc.weight", "fc.bias")


def test_published_parameter_counts():
    """ResNet-20 has 0.27 M parameters (He et al., table 6), torchvision's ResNet-50 25.56 M (ImageNet)."""
    assert sum(models.unit_sizes("resnet20")) == pytest.approx(0.27e6, rel=0.02)
    stem = 64 * 3 * (7 * 7 - 3 * 3)  # the CIFAR stem is 3x3 instead of 7x7
    assert sum(models.unit_sizes("resnet50", num_classes=1000)) == 25_557_032 - stem


@pytest.mark.parametrize(("name", "width"), CUT)
def test_output_shape(name, width):
    model, images = make(name, width)
    assert model(images).shape == (4, 10)
    assert models.build(name, num_classes=7, width=width)(images).shape == (4, 7)


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("channels_last", [False, True], ids=["nchw", "channels_last"])
@pytest.mark.parametrize(("name", "width"), CUT)
def test_pieces_compose_to_the_model_bit_for_bit(name, width, channels_last, training):
    whole, images = make(name, width)
    if channels_last:
        whole.to(memory_format=torch.channels_last)
        images = images.contiguous(memory_format=torch.channels_last)
    whole.train(training)
    cut = copy.deepcopy(whole)

    expected = whole(images)
    (expected.square().sum()).backward()
    state = (images,)
    for piece in pieces(cut):
        before, versions = [t.detach().clone() for t in state], [t._version for t in state]
        given, state = state, piece.run(state)
        assert [t._version for t in given] == versions, f"{piece.name} writes into its input"
        assert all(torch.equal(a, b) for a, b in zip(given, before, strict=True)), f"{piece.name} changes its input"
    (output,) = state
    (output.square().sum()).backward()

    assert torch.equal(output, expected)
    for (key, p), q in zip(whole.named_parameters(), cut.parameters(), strict=True):
        assert torch.equal(p.grad, q.grad), key
    for (key, a), b in zip(whole.named_buffers(), cut.buffers(), strict=True):
        assert torch.equal(a, b), key


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_pieces_run_one_by_one_on_detached_states(training):
    """What a pipeline does: every piece with its own graph, gradients handed back from piece to piece."""
    whole, images = make("digits_resnet", None)
    whole.train(training)
    cut = copy.deepcopy(whole)
    whole(images).square().sum().backward()

    state, tape = (images,), []
    for piece in pieces(cut):
        inputs = tuple(t.detach().requires_grad_() for t in state)
        state = piece.run(inputs)
        tape.append((inputs, state))
    (output,) = state
    gradients = (2 * output.detach(),)
    for inputs, outputs in reversed(tape):
        torch.autograd.backward(outputs, gradients)
        gradients = tuple(t.grad for t in inputs)
    for (key, p), q in zip(whole.named_parameters(), cut.parameters(), strict=True):
        assert torch.equal(p.grad, q.grad), key


@pytest.mark.parametrize(("name", "width"), CUT)
def test_each_unit_lies_whole_in_one_piece_and_in_forward_order(name, width):
    model, images = make(name, width)
    owned = [p for piece in pieces(model) for module in piece.modules for p in module.parameters()]
    assert len({id(p) for p in owned}) == len(owned) == len(list(model.parameters()))
    where = {id(p): k for k, piece in enumerate(pieces(model)) for module in piece.modules for p in module.parameters()}
    parameters = dict(model.named_parameters())
    places = [
        {where[id(parameters[key])] for key in unit.parameters}
        for unit in weight_units(model.eval(), lambda module: module(images))
    ]
    assert all(len(place) == 1 for place in places)
    order = [place.pop() for place in places]
    assert order == sorted(order)


def test_no_relu_works_in_place():
    for name, width in CUT:
        model, _ = make(name, width)
        assert not any(m.inplace for m in model.modules() if isinstance(m, nn.ReLU))


def test_resnet18_is_torchvisions_but_for_the_stem():
    """With the weights of torchvision's own network, and its stem replaced, the outputs are the same."""
    import torchvision

    theirs = torchvision.models.resnet18(num_classes=10)
    theirs.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
    theirs.maxpool = nn.Identity()
    ours = models.build("resnet18")
    ours.load_state_dict(theirs.state_dict())
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(ours.eval()(images), theirs.eval()(images))


def test_wrong_names_and_options():
    with pytest.raises(UserError, match='did you mean "resnet20"'):
        models.build("resnet_20")
    with pytest.raises(UserError, match="unknown model"):
        models.unit_sizes("vgg")
    with pytest.raises(UserError, match="no option dropout"):
        models.build("resnet20", dropout=0.1)
    with pytest.raises(UserError, match="width=0"):
        models.build("resnet20", width=0)
    assert set(IMAGES) == set(SPECS)
