"""Ringmaster: Hogwild!-style delays, of which updates that are too late are thrown away."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from pipemare_exp.methods.hogwild import Hogwild
from pipemare_exp.pipeline.method import RECOMPUTATION, RUNTIME, T2
from pipemare_exp.settings import bounded, choice

if TYPE_CHECKING:
    from pipemare_exp.pipeline.weights.stage_optimizer import StageOptimizer


class Ringmaster(Hogwild):
    """Reads as Hogwild!-style; a stage makes update t only where its delay t - v is below R = `threshold`; [code].

    A stage that makes none keeps its weights and its optimizer's state. R = None (infinity) is Hogwild!-style bit for
    bit, R = 1 makes the updates without a delay only. The delay is drawn per step and stage.

    Emulator only, as Hogwild!-style. Weight memory: W and d_max,i past versions of each stage.
    """

    name = "ringmaster"
    title = "Ringmaster (Hogwild!-style)"
    order = 40
    reference = "Maranjyan et al., Ringmaster ASGD, 2025 (arXiv 2501.16168)"
    study = "methods"
    cannot: ClassVar = {
        T2: "the delays are random, so there is no d to extrapolate over",
        RECOMPUTATION: "random delays have no schedule with slots to recompute in",
        RUNTIME: "its delays are drawn at random, and a pipeline's are what its schedule makes them: all or none of a "
        "stage's updates would be thrown away",
    }

    @dataclass(frozen=True)
    class Options(Hogwild.Options):
        """Those of Hogwild!-style, and `threshold`: R, None for infinity. `draw` is per step, as updates are."""

        threshold: int | None = bounded(4, low=1)
        draw: str = choice("step", "step")

    def update(self, step: int, optimizer: StageOptimizer) -> None:
        limit = self.options.threshold
        late = (
            [] if limit is None else [s for s, read in enumerate(self.forward(step, 0)) if step - read.version >= limit]
        )
        optimizer.step(without=late)
