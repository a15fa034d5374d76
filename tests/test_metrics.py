"""Which of two values is the better one, for metrics of either direction; and how a value is shown."""

from __future__ import annotations

import math

import pytest

from pipemare_exp import metrics
from pipemare_exp.errors import UserError
from pipemare_exp.metrics import Metric

BITS = Metric("bits", "bits per byte", "bits per byte", " bits", 3, higher_is_better=False, highest=None, point=0.05)


def test_the_direction_decides_what_is_better():
    assert metrics.of("accuracy").better(2.0, than=1.0) and not metrics.of("bleu").better(1.0, than=1.0)
    assert BITS.better(1.0, than=2.0) and not BITS.better(2.0, than=1.0)
    for metric in (BITS, metrics.of("accuracy")):
        assert not metric.better(math.nan, than=1.0) and not metric.better(1.0, than=math.nan)
    assert (metrics.of("accuracy").best([1, 3, 2]), BITS.best([1, 3, 2])) == (3, 1)
    assert (metrics.of("accuracy").worst([1, 3, 2]), BITS.worst([1, 3, 2])) == (1, 3)


def test_worse_values_stay_in_the_metrics_range():
    assert metrics.of("accuracy").worsened(90.0, by=4.0) == 86.0 and metrics.of("accuracy").worsened(3.0, by=4.0) == 0.0
    assert BITS.worsened(1.0, by=4.0) == 5.0
    assert metrics.of("bleu").clipped(101.0) == 100.0 and BITS.clipped(101.0) == 101.0 and BITS.clipped(-1.0) == 0.0


def test_values_are_shown_with_their_unit():
    assert metrics.of("accuracy").shown(97.357) == "97.36 %"
    assert BITS.shown(1.23456, 3) == "1.235 bits"
    assert metrics.of("bleu").named == "bleu in percent" and BITS.named == "bits per byte"


def test_an_unknown_metric_is_named():
    with pytest.raises(UserError, match='metric "acuracy" is unknown.*did you mean "accuracy"'):
        metrics.of("acuracy")
