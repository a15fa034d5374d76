"""A metric of which less is better, for tests of all that compares: no task has one."""

from __future__ import annotations

from pipemare_exp.metrics import Metric

BITS = Metric(
    "bits", "bits per byte", "bits per byte", " bits", 3, higher_is_better=False, highest=None, point=0.05, margin=0.02
)
