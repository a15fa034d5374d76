"""What no pipeline can be is refused with the value and what is allowed; what is derived from a cut."""

import pytest

from pipemare_exp.errors import UserError
from pipemare_exp.pipeline.model.units import Unit
from pipemare_exp.pipeline.shape import Pipeline, Shape

UNITS = [Unit(name, (f"{name}.weight", f"{name}.bias"), 6) for name in "abcd"]


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ((0, 2), "pipeline.stages=0"),
        ((3, 0), "pipeline.microbatches=0: at least one"),
        ((3, 2, "triple"), "triple.*duplex"),
        ((3, 2, "alternating", 2), "recompute=2.*duplex slots"),
        ((3, 2, "duplex", 4), "recompute=4.*1 to 3 stages"),
        ((3, 2, "duplex", 0), "recompute=0.*1 to 3 stages"),
    ],
)
def test_a_shape_that_cannot_be(values, says):
    with pytest.raises(UserError, match=says):
        Shape(*values)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"boundaries": [1, 2]}, "must start with 0"),
        ({"boundaries": [0, 4]}, "rise to below 4"),
        ({"boundaries": [0, 2], "split": 0}, "split=0: must be at least 1"),
        ({"boundaries": [0, 2], "split": 2, "segment": 1}, "recompute=1 with pipeline.split=2"),
        ({"boundaries": [0, 2], "microbatches": 0}, "microbatches=0"),
    ],
)
def test_a_cut_that_cannot_be(values, says):
    with pytest.raises(UserError, match=says):
        Pipeline(UNITS, **{"microbatches": 2, **values})


def test_stages_and_their_parameters():
    pipeline = Pipeline(UNITS, [0, 1, 3], 4, "alternating")
    assert pipeline.shape == Shape(3, 4, "alternating") and pipeline.stages == 3
    assert pipeline.stage_parameters == [
        ["a.weight", "a.bias"],
        ["b.weight", "b.bias", "c.weight", "c.bias"],
        ["d.weight", "d.bias"],
    ]
    assert Pipeline(UNITS, [0, 2], 1, split=3).shape.stages == 6
