"""What the emulator will not take, because it would train on wrong weights without a sign."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from pipemare_exp.errors import UserError
from pipemare_exp.methods.pipemare import PipeMare
from pipemare_exp.pipeline.emulator.emulator import Emulator
from pipemare_exp.pipeline.model.units import Unit
from pipemare_exp.pipeline.shape import Pipeline

UNITS = [Unit("0", ("0.weight", "0.bias"), 6), Unit("1", ("1.weight", "1.bias"), 6)]
SGD = partial(torch.optim.SGD, lr=0.0)


def net(dtype=torch.float32):
    return nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)).to(dtype)


def test_a_compiled_model_is_refused():
    compiled = torch.compile(net())
    units = [Unit(u.name, tuple(f"_orig_mod.{p}" for p in u.parameters), u.numel) for u in UNITS]
    with pytest.raises(UserError, match="compiled"):
        Emulator(compiled, Pipeline(units, [0, 1], 2), PipeMare(), SGD)


def test_parameters_of_two_dtypes_are_refused():
    model = net()
    model[1].to(torch.float64)
    with pytest.raises(ValueError, match="1.weight.*float64"):
        Emulator(model, Pipeline(UNITS, [0, 1], 2), PipeMare(), SGD)


def test_a_method_serves_one_emulator():
    method = PipeMare(decay=0.5)
    Emulator(net(), Pipeline(UNITS, [0, 1], 2), method, SGD)
    with pytest.raises(UserError, match="PipeMare is already bound.*new method object"):
        Emulator(net(), Pipeline(UNITS, [0, 1], 2), method, SGD)


def test_a_model_serves_one_emulator():
    model = net()
    first = Emulator(model, Pipeline(UNITS, [0, 1], 2), PipeMare(), SGD)
    held = [p.data_ptr() for p in model.parameters()]
    with pytest.raises(UserError, match="Sequential already belongs to an emulator.*new model"):
        Emulator(model, Pipeline(UNITS, [0, 1], 2), PipeMare(), SGD)
    assert held == [p.data_ptr() for p in model.parameters()]  # the first goes on
    first.step([torch.ones(1, 2), torch.ones(1, 2)], lambda model, x: model(x).sum() / 2, 0.1)
    assert first.version == 1


def test_a_model_that_was_refused_may_be_tried_again():
    model = net()
    with pytest.raises(UserError, match="rate of its own"):
        Emulator(
            model,
            Pipeline(UNITS, [0, 1], 2),
            PipeMare(),
            lambda groups: torch.optim.SGD([{**g, "lr": 1.0} for g in groups]),
        )
    Emulator(model, Pipeline(UNITS, [0, 1], 2), PipeMare(), SGD)


@pytest.mark.parametrize("clip", [("all", 1.0), ("stage", 0.0), ("global", -1.0)])
def test_a_wrong_clip_is_refused(clip):
    with pytest.raises(UserError, match=str(clip[1])):
        Emulator(net(), Pipeline(UNITS, [0, 1], 2), PipeMare(), SGD, clip=clip)


def test_a_wrong_number_of_microbatches_is_refused():
    made = Emulator(net(), Pipeline(UNITS, [0, 1], 2), PipeMare(), SGD)
    with pytest.raises(ValueError, match="3 microbatches given, the pipeline has 2"):
        made.step([None, None, None], lambda model, x: model(x).sum(), 0.1)
