"""What a training method is: which weights each pass reads, at which rate each stage learns, what state it keeps."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from pipemare_exp.pipeline.reads import Read
from pipemare_exp.pipeline.versions import history_depth, mean_delays, slot_delays


class Method:
    """A training method as a rule over stages; this base is the synchronous one, everything reads version t.

    A method is bound once to a pipeline's shape, then asked per step and microbatch. Adding a method is adding a
    file with a subclass that overrides what differs:

    - `forward`, `backward`: the `Read` of every stage for one microbatch of one step;
    - `depths`: how many past versions those reads need, per stage (None: only the current weights, as they are);
    - `rate_factors`: what the step's rate is multiplied with, per stage;
    - `transform_gradients`: a change of the summed gradients before the optimizer;
    - `tracks`, `updated`: whether it wants w_{t+1} - w_t of a stage, and what it does with it;
    - `state_dict`, `load_state_dict`: what a checkpoint must hold beyond `buffers`.

    `buffers[name][s]` is a flat tensor of stage s's weights' size (None where a stage has none); a `Read` may add a
    multiple of one to a version.
    """

    label = ""
    synchronous = True

    def bind(self, stages: int, microbatches: int, slots: str, weights: Sequence[Tensor]) -> None:
        """Fix the shape: P stages, N microbatches, the slot model; `weights` are the stages' flat weights."""
        self.stages, self.microbatches, self.slots = stages, microbatches, slots
        self.delays = slot_delays(stages, slots)
        self.tau = mean_delays(stages, microbatches, slots)
        self.buffers: dict[str, list[Tensor | None]] = {}

    def forward(self, step: int, microbatch: int) -> list[Read]:
        return [Read(step)] * self.stages

    def backward(self, step: int, microbatch: int) -> list[Read]:
        return [Read(step)] * self.stages

    def depths(self) -> list[int | None]:
        return [None] * self.stages

    def rate_factors(self, step: int) -> list[float]:
        return [1.0] * self.stages

    def transform_gradients(self, step: int, gradients: Sequence[Tensor]) -> None:
        """Change the stages' flat gradients of `step` in place, after clipping, before the optimizer."""

    def tracks(self) -> list[bool]:
        """For which stages `updated` wants the change of weights."""
        return [False] * self.stages

    def updated(self, step: int, changes: Sequence[Tensor | None]) -> None:
        """After update t = `step`: `changes[s]` is w_{t+1} - w_t where `tracks()[s]`, to be read now and not kept."""

    def state_dict(self) -> dict:
        return {"buffers": self.buffers}

    def load_state_dict(self, state: dict) -> None:
        for name, kept in state["buffers"].items():
            for mine, saved in zip(self.buffers[name], kept, strict=True):
                if mine is not None:
                    mine.copy_(saved)


class Asynchronous(Method):
    """A method whose forward reads the version that a pipeline without flushes has at that moment.

    The forward of microbatch n of step t at stage s reads version max(M, t + floor((n - L_s)/N)); steps before M run
    synchronously and everything in them reads version t.
    """

    synchronous = False

    def __init__(self, warmup_steps: int = 0) -> None:
        self.warmup_steps = warmup_steps

    def bind(self, stages: int, microbatches: int, slots: str, weights: Sequence[Tensor]) -> None:
        super().bind(stages, microbatches, slots, weights)
        self._ages = [[(n - delay) // microbatches for delay in self.delays] for n in range(microbatches)]

    def forward(self, step: int, microbatch: int) -> list[Read]:
        if step < self.warmup_steps:
            return super().forward(step, microbatch)
        return [Read(max(self.warmup_steps, step + age)) for age in self._ages[microbatch]]

    def depths(self) -> list[int | None]:
        depths = [history_depth(delay, self.microbatches) for delay in self.delays]
        return [depth if depth > 0 else None for depth in depths]
