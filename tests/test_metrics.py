"""Which of two values is the better one, for metrics of either direction; and how a value is shown."""

from __future__ import annotations

import math

import pytest

from pipemare_exp import metrics
from pipemare_exp.errors import UserError
from tests.made_up_metric import BITS


def test_the_direction_decides_what_is_better():
    assert metrics.of("accuracy").better(2.0, than=1.0) and not metrics.of("bleu").better(1.0, than=1.0)
    assert BITS.better(1.0, than=2.0) and not BITS.better(2.0, than=1.0)
    for metric in (BITS, metrics.of("accuracy")):
        assert not metric.better(math.nan, than=1.0) and not metric.better(1.0, than=math.nan)
    assert (metrics.of("accuracy").best([1, 3, 2]), BITS.best([1, 3, 2])) == (3, 1)
    assert (metrics.of("accuracy").worst([1, 3, 2]), BITS.worst([1, 3, 2])) == (1, 3)


def test_a_target_is_reached_from_the_worse_side():
    assert metrics.of("accuracy").worsened(90.0, by=4.0) == 86.0 and BITS.worsened(1.0, by=4.0) == 5.0
    assert metrics.of("accuracy").reaches(90.0, target=90.0) and not metrics.of("accuracy").reaches(89.9, target=90.0)
    assert BITS.reaches(1.0, target=1.0) and not BITS.reaches(1.1, target=1.0)


def test_a_metric_has_a_range():
    assert metrics.of("bleu").clipped(101.0) == 100.0 and BITS.clipped(101.0) == 101.0 and BITS.clipped(-1.0) == 0.0


def test_values_are_shown_with_their_unit():
    assert metrics.of("accuracy").shown(97.357) == "97.36 %"
    assert BITS.shown(1.23456, 3) == "1.235 bits"
    assert metrics.of("bleu").named == "bleu in percent" and BITS.named == "bits per byte"


def test_an_unknown_metric_is_named():
    with pytest.raises(UserError, match='metric "acuracy" is unknown.*did you mean "accuracy"'):
        metrics.of("acuracy")
