"""Fixed delay: every stage is late by the same number of steps, as in the simulators that papers use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from pipemare_exp.pipeline.method import RECOMPUTATION, RUNTIME, T1, T2, T3, Method, rescheduled
from pipemare_exp.pipeline.weights.reads import Read
from pipemare_exp.settings import bounded

if TYPE_CHECKING:
    from torch import Tensor


class Late(Method):
    """What both kinds of fixed delay share: d = `delay` at every stage, by which T1 divides."""

    synchronous = False
    takes = (T1, T3)
    study = "methods"
    reference = (
        "the delay model of analyses and simulations of asynchronous SGD, such as Langford et al., Slow learners are "
        "fast, NeurIPS 2009"
    )
    cannot: ClassVar = {
        T2: "both passes read the same version, so there is no discrepancy to correct",
        RECOMPUTATION: "a delay that is the same at all stages belongs to no schedule with slots to recompute in",
        RUNTIME: "the delays of a real pipeline differ from stage to stage, where here all are alike",
    }

    @dataclass(frozen=True)
    class Options:
        """`delay`: d, in steps."""

        delay: int = bounded(3, low=0)

    def rate_factors(self, step: int) -> list[float]:
        delays = [float(self.options.delay)] * self.stages
        return rescheduled(delays, step - self.warmup_steps, self.lr_rescheduling_steps)


class FixedDelay(Late):
    """w_{t+1} = w_t - alpha * optimizer(grad f_t(w_u, w_u)), u = max(M, t - d), d = `delay` at every stage.

    Steps before M = `warmup_steps` are synchronous (T3). T1 divides the rate by max(d, 1)^p. d = 0 is synchronous
    training. Emulator only; weight memory of the emulation: W and d past versions.

    The definition is common; marked [paper].
    """

    name = "fixed_delay"
    title = "Fixed delay"
    order = 10

    def forward(self, step: int, microbatch: int) -> list[Read]:
        version = step if step < self.warmup_steps else max(self.warmup_steps, step - self.options.delay)
        return [Read(version)] * self.stages

    def backward(self, step: int, microbatch: int) -> list[Read]:
        return self.forward(step, microbatch)

    def depths(self) -> list[int | None]:
        return [self.options.delay or None] * self.stages


class GradientFIFO(Late):
    """w_{t+1} = w_t - alpha * optimizer(G_{t-d}), G_u = grad f_u(w_u, w_u): the gradient waits d = `delay` steps.

    All passes read version t, and the summed (and clipped) gradient goes through a queue of d before the optimizer.
    Until the queue is full, steps M to M + d - 1, the optimizer is given zeros, as there is nothing else: weight decay
    and momentum go on. For plain SGD it is the fixed delay with another order of the data: update t uses the data of
    step t - d. With momentum or Adam it is the same again, as both act on the gradients that arrive.

    Emulator only; memory: W and d gradients.
    """

    name = "gradient_fifo"
    title = "Gradient FIFO"
    order = 11

    def prepare(self, weights: Sequence[Tensor]) -> None:
        self.add_rings("waiting", weights, [self.options.delay] * self.stages)

    def transform_gradients(self, step: int, gradients: Sequence[Tensor]) -> None:
        if step < self.warmup_steps:
            return
        for gradient, ring in zip(gradients, self.rings["waiting"], strict=True):
            if ring is None:
                continue
            slot = ring.slot(step)
            arrived = slot.clone()  # zeros until the queue is full
            slot.copy_(gradient)
            gradient.copy_(arrived)
