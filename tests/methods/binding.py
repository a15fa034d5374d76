"""A method bound to a pipeline's shape, and the delays written out again."""

import torch

from pipemare_exp import methods
from pipemare_exp.pipeline.shape import Shape


def bound(name, stages, N, slots="duplex", **options):
    made = methods.build(name, **options)
    made.bind(Shape(stages, N, slots), [torch.zeros(4) for _ in range(stages)])
    return made


def tau(stages, N, slots):
    """Mean delay of each stage's forward weights, in steps; i = 1..P."""
    return [(2 * (stages - i) + 1 if slots == "duplex" else stages - i) / N for i in range(1, stages + 1)]
