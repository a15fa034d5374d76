"""Measuring pieces: the slow one is found, cuts are balanced, and the model is left as it was."""

from __future__ import annotations

import json
import time

import pytest
import torch
from torch import nn

from pipemare_exp import cli
from pipemare_exp.pipeline.model.units import Piece
from pipemare_exp.pipeline.runtime.measure import balanced_pieces, piece_seconds
from tests.pipeline.runtime.runtime_cases import DropoutNet


class Slow(nn.Module):
    """Three layers with BatchNorm, the middle one of which takes 20 ms forward."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)) for _ in range(3))

    def pieces(self) -> list[Piece]:
        def run(index: int):
            def inner(state):
                time.sleep(0.02 if index == 1 else 0.0)
                return (self.layers[index](state[0]),)

            return inner

        return [Piece(str(k), (self.layers[k],), run(k)) for k in range(3)]


def test_the_slow_piece_is_found_and_nothing_is_left_behind() -> None:
    model = Slow().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 3.0)
    seconds = piece_seconds(model, model.pieces(), (torch.randn(5, 4),), repeats=3)
    assert seconds[1] > 0.02 and max(range(3), key=seconds.__getitem__) == 1
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(bool((parameter.grad == 3.0).all()) for parameter in model.parameters())


def test_tensors_that_want_no_gradient_pass() -> None:
    model = DropoutNet()
    assert len(piece_seconds(model, model.pieces(), (torch.randn(3, 1, 8, 8),), repeats=1)) == 4


def test_groups_take_as_nearly_the_same_time_as_contiguous_ones_can() -> None:
    assert balanced_pieces([4.0, 1.0, 1.0, 1.0, 1.0], 2) == [0, 1]
    assert balanced_pieces([1e-3, 1e-3, 1e-3, 5e-3], 2) == [0, 3]


def test_plan_proposes_boundaries(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["plan", "--model", "digits_resnet", "--stages", "3", "--microbatches", "2", "--measure"]
    assert cli.main([*command, "--batch", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["boundaries"][0] == 0 and len(found["boundaries"]) == len(found["milliseconds"]) == 3
    assert found["boundaries"] == sorted(found["boundaries"]) and found["boundaries"][-1] < 43
    assert cli.main(["plan", "--stages", "3", "--microbatches", "2", "--measure"]) == 2
    assert "--measure needs --model and --stages" in capsys.readouterr().err
