"""What a training method is: which weights each pass reads, at which rate each stage learns, what state it keeps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from torch import Tensor

from pipemare_exp.errors import UserError
from pipemare_exp.pipeline.schedule.versions import history_depth, mean_delays, recompute_delays, slot_delays
from pipemare_exp.pipeline.shape import Shape
from pipemare_exp.pipeline.weights.history import History, Ring, make_rings
from pipemare_exp.pipeline.weights.reads import Read


class Method:
    """A training method as a rule over stages; this base is the synchronous one, everything reads version t.

    A method is bound once to a pipeline's shape, then asked per step and microbatch. Adding a method is adding a
    file with a subclass that overrides what differs:

    - `prepare`: what it derives from the shape once it is bound;
    - `forward`, `recompute`, `backward`: the `Read` of every stage for one microbatch of one step;
    - `depths`: how many past versions those reads need, per stage (None: only the current weights, as they are);
    - `rate_factors`: what the step's rate is multiplied with, per stage;
    - `transform_gradients`: a change of the summed gradients before the optimizer;
    - `about_to_update`: what it does with version t before the update;
    - `tracks`, `updated`: whether it wants w_{t+1} - w_t of a stage, and what it does with it;
    - `state_dict`, `load_state_dict`: what a checkpoint must hold beyond `buffers` and `rings`.

    `buffers[name][s]` is a flat tensor of stage s's weights' size (None where a stage has none); a `Read` may add a
    multiple of one to a version. `rings[name][s]` holds past tensors of that size by version.
    """

    label = ""
    synchronous = True
    warmup_steps = 0
    """M: steps before this one run synchronously (T3)."""
    cannot: ClassVar[dict[str, str]] = {}
    """Options that other methods have and this one refuses, each with the reason."""
    _bound = False

    @property
    def unscheduled(self) -> str | None:
        """Why no schedule gives the reads of this method, so that it has no real pipeline; None where one does."""
        return None if self.synchronous else "it does not say that its reads are those of a pipeline's schedule"

    def bind(self, shape: Shape, weights: Sequence[Tensor], *, looks_back: bool = True) -> None:
        """Fix the pipeline's shape; `weights` are the stages' flat weights. A method object serves one pipeline: its
        buffers belong to those weights, so a second call raises UserError.

        `looks_back`: the engine runs passes after their moment, as the emulator does, and so needs `rings` of what was
        there at that moment. A real pipeline runs each pass at its moment and has none.
        """
        if self._bound:
            raise UserError(
                f"this {type(self).__name__} is already bound to a pipeline, whose weights its buffers belong to; "
                "make a new method object for every engine"
            )
        self.stages, self.microbatches = shape.stages, shape.microbatches
        self.slots, self.segment = shape.slots, shape.segment
        self.delays = slot_delays(shape.stages, shape.slots)
        self.tau = mean_delays(shape.stages, shape.microbatches, shape.slots)
        self.recompute_delays = [0] * shape.stages
        if shape.segment is not None:
            self.recompute_delays = recompute_delays(shape.stages, shape.segment)
        self.buffers: dict[str, list[Tensor | None]] = {}
        self.rings: dict[str, list[Ring | None]] = {}
        self._bound, self._looks_back = True, looks_back
        self.prepare(weights)

    def prepare(self, weights: Sequence[Tensor]) -> None:
        """Derive what the method needs from the shape that `bind` has just fixed; make its buffers and rings."""

    def add_buffer(self, name: str, weights: Sequence[Tensor], wanted: Sequence[bool]) -> None:
        """`buffers[name]`: zeros of the weights' size for each stage that is wanted, in one block."""
        sizes = [flat.numel() if want else 0 for flat, want in zip(weights, wanted, strict=True)]
        together = weights[0].new_zeros(sum(sizes))
        self.buffers[name] = [part if want else None for part, want in zip(together.split(sizes), wanted, strict=True)]

    def add_rings(self, name: str, weights: Sequence[Tensor], lengths: Sequence[int]) -> None:
        """`rings[name]`: past tensors of the weights' size, `lengths[s]` of them for stage s; none at all for an engine
        that never looks back."""
        if self._looks_back:
            self.rings[name] = make_rings(weights, lengths)

    def forward(self, step: int, microbatch: int) -> list[Read]:
        return [Read(step)] * self.stages

    def recompute(self, step: int, microbatch: int) -> list[Read]:
        return self.backward(step, microbatch)

    def while_current(self, stage: int, read: Read) -> Read:
        """The same weights as `read`, asked for while `read.version` is current, as a real pipeline does: a ring gets
        its entry of a version only when that version is updated."""
        return read

    def backward(self, step: int, microbatch: int) -> list[Read]:
        return [Read(step)] * self.stages

    def depths(self) -> list[int | None]:
        return [None] * self.stages

    def rate_factors(self, step: int) -> list[float]:
        return [1.0] * self.stages

    def transform_gradients(self, step: int, gradients: Sequence[Tensor]) -> None:
        """Change the stages' flat gradients of `step` in place, after clipping, before the optimizer."""

    def about_to_update(self, step: int, history: History) -> None:
        """Before update t = `step`, with every kept version of the weights at hand."""

    def tracks(self) -> list[bool]:
        """For which stages `updated` wants the change of weights."""
        return [False] * self.stages

    def updated(self, step: int, changes: Iterable[Tensor | None]) -> None:
        """After update t = `step`: `changes` gives w_{t+1} - w_t stage by stage, None where not `tracks()[s]`; each
        is to be read before the next one is asked for, and not kept."""

    def state_dict(self) -> dict:
        rings = {name: [None if ring is None else ring.data for ring in rings] for name, rings in self.rings.items()}
        return {"buffers": self.buffers, "rings": rings}

    def load_state_dict(self, state: dict) -> None:
        for name, kept in state["rings"].items():
            for ring, saved in zip(self.rings[name], kept, strict=True):
                if ring is not None:
                    ring.data.copy_(saved)
        for name, kept in state["buffers"].items():
            for mine, saved in zip(self.buffers[name], kept, strict=True):
                if mine is not None:
                    mine.copy_(saved)


class Asynchronous(Method):
    """A method whose forward reads the version that a pipeline without flushes has at that moment.

    The forward of microbatch n of step t at stage s reads version max(M, t + floor((n - L_s)/N)); steps before
    M = `warmup_steps` run synchronously (T3) and everything in them reads version t. T1 with K =
    `lr_rescheduling_steps`: see `rescheduled`.
    """

    synchronous = False
    unscheduled = None

    def __init__(self, lr_rescheduling_steps: int = 0, warmup_steps: int = 0) -> None:
        check_steps(lr_rescheduling_steps=lr_rescheduling_steps, warmup_steps=warmup_steps)
        self.lr_rescheduling_steps, self.warmup_steps = lr_rescheduling_steps, warmup_steps

    def prepare(self, weights: Sequence[Tensor]) -> None:
        self._ages = [[(n - delay) // self.microbatches for delay in self.delays] for n in range(self.microbatches)]
        self._distinct = [sorted(set(ages)) for ages in self._ages]

    def forward(self, step: int, microbatch: int) -> list[Read]:
        if step < self.warmup_steps:
            return super().forward(step, microbatch)
        # One object for all stages of an age: a step would else make thousands, which the garbage collector looks at.
        reads = {age: Read(max(self.warmup_steps, step + age)) for age in self._distinct[microbatch]}
        return [reads[age] for age in self._ages[microbatch]]

    def rate_factors(self, step: int) -> list[float]:
        return rescheduled(self.tau, step - self.warmup_steps, self.lr_rescheduling_steps)

    def depths(self) -> list[int | None]:
        depths = [history_depth(delay, self.microbatches) for delay in self.delays]
        return [depth if depth > 0 else None for depth in depths]


def check_steps(**steps: int) -> None:
    """Raise UserError for a number of steps below 0."""
    for name, value in steps.items():
        if value < 0:
            raise UserError(f"{name}={value}: a number of optimizer steps, at least 0 (0 switches it off)")


def rescheduled(delays: Sequence[float], since: int, steps: int) -> list[float]:
    """T1's factors `since` steps after asynchronous training began: max(tau_i, 1)^-p, p = 1 - min(since/K, 1).

    1 before that (`since` < 0) and for K = `steps` = 0. The clamp keeps T1 from raising a rate.
    """
    if since < 0 or since >= steps:
        return [1.0] * len(delays)
    power = 1.0 - since / steps
    return [max(delay, 1.0) ** -power for delay in delays]
