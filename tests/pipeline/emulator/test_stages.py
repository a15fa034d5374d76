"""Weight units in forward order, and their grouping into stages."""

import itertools
import random

import pytest
import torch
from torch import nn

from pipemare_exp.errors import UserError
from pipemare_exp.pipeline.model.units import choose_boundaries, group, weight_units
from tests.pipeline.toys import look, mixed_net, named_units


def units_of(net, example):
    return weight_units(net, lambda m: look(m, example))


class Backwards(nn.Module):
    """Registers its layers in the reverse of the order in which it uses them, one of them twice."""

    def __init__(self):
        super().__init__()
        self.last, self.norm, self.first = nn.Linear(4, 3), nn.LayerNorm(4), nn.Linear(4, 4, bias=False)

    def forward(self, x):
        return self.last(self.norm(self.first(self.norm(self.first(x)))))


class Tied(nn.Module):
    """Embedding and output share a weight; the output has a bias of its own."""

    def __init__(self, bias):
        super().__init__()
        self.out = nn.Linear(4, 9, bias=bias)
        self.hidden, self.embedding = nn.Linear(4, 4), nn.Embedding(9, 4)
        self.out.weight = self.embedding.weight

    def forward(self, x):
        return self.out(self.hidden(self.embedding(x)))


class Attentive(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.norm = nn.MultiheadAttention(8, 2, batch_first=True), nn.LayerNorm(8)

    def forward(self, x):
        x = self.norm(x)
        return self.attention(x, x, x, need_weights=False)[0]


def test_a_unit_is_a_weight_with_its_bias():
    net = mixed_net()
    units = units_of(net, torch.zeros(2, 2, 6, 6, dtype=torch.float64))
    assert [list(unit.parameters) for unit in units] == named_units(net)
    sizes = [sum(net.get_parameter(name).numel() for name in unit.parameters) for unit in units]
    assert [unit.numel for unit in units] == sizes
    assert len({unit.name for unit in units}) == 6


def test_forward_order_not_order_of_registration():
    units = units_of(Backwards(), torch.zeros(2, 4))
    assert [list(unit.parameters) for unit in units] == [
        ["first.weight"],
        ["norm.weight", "norm.bias"],
        ["last.weight", "last.bias"],
    ]


@pytest.mark.parametrize("bias", [False, True])
def test_a_tied_weight_is_one_unit_at_its_first_use(bias):
    net = Tied(bias)
    units = units_of(net, torch.zeros(2, 3, dtype=torch.long))
    assert [unit.numel for unit in units] == [36, 20, 9][: 2 + bias]
    owned = [net.get_parameter(name) for unit in units for name in unit.parameters]
    assert owned[0] is net.embedding.weight
    assert len({id(p) for p in owned}) == len(owned) == len(list(net.parameters()))


def test_attention_is_two_units():
    net = Attentive()
    units = units_of(net, torch.zeros(1, 3, 8))
    assert [sorted(unit.parameters) for unit in units] == [
        ["norm.bias", "norm.weight"],
        ["attention.in_proj_bias", "attention.in_proj_weight"],
        ["attention.out_proj.bias", "attention.out_proj.weight"],
    ]


def test_a_weight_that_the_forward_never_uses_is_an_error():
    class Idle(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.idle = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x):
            return self.used(x)

    with pytest.raises(UserError, match="idle"):
        units_of(Idle(), torch.zeros(1, 2))


def bottleneck(costs, boundaries):
    return max(sum(costs[a:b]) for a, b in zip(boundaries, [*boundaries[1:], len(costs)], strict=True))


def test_the_bottleneck_is_the_smallest_possible():
    """Against every way to cut up to 9 units, for every number of stages."""
    draw = random.Random(1)
    for _ in range(60):
        costs = [draw.choice([1, 2, 3, 7, 40, draw.randint(1, 99)]) for _ in range(draw.randint(1, 9))]
        for stages in range(1, len(costs) + 1):
            found = choose_boundaries(costs, stages)
            assert len(found) == stages and found[0] == 0 and found == sorted(set(found)) and found[-1] < len(costs)
            best = min(
                bottleneck(costs, [0, *inner]) for inner in itertools.combinations(range(1, len(costs)), stages - 1)
            )
            assert bottleneck(costs, found) == best
            assert found == choose_boundaries(tuple(costs), stages)


def test_as_many_stages_as_units_are_the_units():
    assert choose_boundaries([5, 1, 9, 1], 4) == [0, 1, 2, 3]


@pytest.mark.parametrize("stages", [5, 1000])
def test_more_stages_than_units_names_both_numbers(stages):
    with pytest.raises(UserError) as error:
        choose_boundaries([5, 1, 9, 1], stages)
    assert str(stages) in str(error.value) and "4" in str(error.value)


@pytest.mark.parametrize("stages", [0, -3])
def test_too_few_stages(stages):
    with pytest.raises(UserError, match=str(stages)):
        choose_boundaries([5, 1], stages)


@pytest.mark.parametrize("boundaries", [[], [1], [0, 0], [0, 6], [0, 3, 2], [0, 2, 2], [-1, 2]])
def test_boundaries_that_cut_nothing_are_refused(boundaries):
    units = units_of(mixed_net(), torch.zeros(2, 2, 6, 6, dtype=torch.float64))
    with pytest.raises(UserError, match="boundaries"):
        group(units, boundaries)


def test_groups_are_contiguous_and_whole():
    units = units_of(mixed_net(), torch.zeros(2, 2, 6, 6, dtype=torch.float64))
    stages = group(units, [0, 2, 5])
    assert [len(stage) for stage in stages] == [2, 3, 1]
    assert [unit for stage in stages for unit in stage] == units
