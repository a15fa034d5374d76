"""What the runtime refuses to cut or to run, with the reason."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pipemare_exp import methods, models
from pipemare_exp.errors import UserError
from pipemare_exp.pipeline.model.cutting import cut
from pipemare_exp.pipeline.model.units import weight_units
from pipemare_exp.pipeline.runtime.stage import depths
from pipemare_exp.pipeline.shape import Shape
from tests.pipeline.runtime.runtime_cases import Case, DropoutNet, Workload


def test_stages_are_whole_pieces() -> None:
    training = Workload(Case("gpipe", stages=3, model="dropout"))
    stages = cut(training.model, training.units, training.boundaries)
    assert [piece.name for stage in stages for piece in stage] == ["first", "second", "third", "fourth"]
    assert len(stages) == 3


def test_more_stages_than_pieces() -> None:
    training = Workload(Case("gpipe", model="dropout"))
    assert len(training.units) == 5
    with pytest.raises(UserError, match="stages=5, but DropoutNet can be cut into 4 pieces"):
        cut(training.model, training.units, [0, 1, 2, 3, 4])


def test_a_stage_that_begins_inside_a_piece() -> None:
    training = Workload(Case("gpipe", model="dropout"))
    inside = next(k for k, unit in enumerate(training.units) if unit.name == "norm")
    with pytest.raises(UserError, match=r"begin at weight unit \d \(norm\), inside a piece"):
        cut(training.model, training.units, [0, inside])


class Tied(DropoutNet):
    """The last layer's weights are those of a layer before."""

    def __init__(self) -> None:
        super().__init__()
        self.layers[1] = nn.Linear(24, 24)
        self.layers[2] = nn.Linear(24, 24)
        self.layers[2].weight = self.layers[1].weight
        self.layers[3] = nn.Linear(24, 10)


def test_a_weight_that_two_stages_use() -> None:
    model = Tied()

    @torch.no_grad()
    def probe(net: nn.Module) -> None:
        net.eval()
        net(torch.zeros(2, 1, 8, 8))
        net.train()

    units = weight_units(model, probe)
    first = {unit.name: k for k, unit in enumerate(units)}
    with pytest.raises(UserError, match=r"layers.1.weight is tied: stages 0 and 1 both use it"):
        cut(model, units, [0, first["layers.2"]])
    assert len(cut(model, units, [0, first["layers.3"]])) == 2


@pytest.mark.parametrize(
    ("name", "options", "kept"),
    [
        ("gpipe", {}, [None, None, None]),
        ("pipemare", {}, [None, None, None]),
        ("pipemare", {"lr_rescheduling_steps": 9}, [None, None, None]),
        ("pipemare", {"decay": 0.5, "warmup_steps": 4}, [0, 0, 0]),
        ("pipedream", {}, [3, 2, 1]),
        ("pipedream", {"warmup_steps": 5}, [3, 2, 1]),
    ],
)
def test_versions_kept_beside_the_live_weights(name: str, options: dict, kept: list[int | None]) -> None:
    """P = 3, N = 2, duplex slots: delays of 5, 3 and 1 slots. Only what a pass reads and the live weights are not."""
    found = []
    for stage in range(3):
        method = methods.build(name, **options)
        method.bind(Shape(3, 2, "duplex"), [torch.zeros(4 if s == stage else 0) for s in range(3)])
        found.append(depths(method, stage)[stage])
    assert found == kept


def test_a_transformer_whose_output_projection_is_an_embedding() -> None:
    from pipemare_exp.models import fairseq_door as door
    from pipemare_exp.models import transformer

    words = door.Dictionary()
    model = transformer.build(words, words, layers=1, width=8, heads=2, tying="decoder")
    model.eval()
    with torch.no_grad():
        units = weight_units(model, transformer.run_once)
    with pytest.raises(UserError, match="is tied: the pieces decoder.embed and decoder.output share it"):
        cut(model, units, [0])


def test_a_gpts_tied_head_cannot_be_on_another_rank_than_its_embedding():
    tied = models.build("gpt_tiny", layers=1, width=8, heads=2, tying="decoder")
    units = weight_units(tied, lambda model: model(torch.zeros(1, 1, dtype=torch.int64)))
    with pytest.raises(UserError, match=r"tokens.weight is tied: stages 0 and 1 both use it.*model.tying=none"):
        cut(tied, units, [0, 4])
    assert len(cut(tied, units, [0])) == 1
