"""What a training method is: which weights each pass reads, at which rate each stage learns, what state it keeps, and
what it declares about itself.

Nothing here imports torch before a method is bound, so that a plan, a table or a list of figures may ask a method's
declarations without waiting for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from pipemare_exp import settings
from pipemare_exp.errors import UserError
from pipemare_exp.pipeline.schedule.costs import Costs
from pipemare_exp.pipeline.schedule.versions import history_depth, mean_delays, recompute_delays, slot_delays
from pipemare_exp.pipeline.weights.reads import Read

if TYPE_CHECKING:
    from torch import Tensor

    from pipemare_exp.pipeline.shape import Shape
    from pipemare_exp.pipeline.weights.history import History, Ring
    from pipemare_exp.pipeline.weights.stage_optimizer import StageOptimizer

T1, T2, T3 = "lr_rescheduling", "discrepancy_correction", "sync_warmup"
RECOMPUTATION, RUNTIME = "recomputation", "runtime"
SWITCHES = {T1: "t1", T2: "t2", T3: "t3"}
"""The option groups that methods share, and what each adds to a label when it is on."""

WORDS = {
    T1: "T1 (lr_rescheduling)",
    T2: "T2 (discrepancy_correction)",
    T3: "T3 (sync_warmup)",
    RECOMPUTATION: "recomputation",
    RUNTIME: "engine=runtime",
}


@dataclass(frozen=True)
class NoOptions:
    """The options of a method that has none of its own."""


class Method:
    """A training method as a rule over stages; this base is the synchronous one, everything reads version t.

    Adding a method is adding a file with a subclass. The class declares what the method is (the class variables and
    class methods below). Its object is bound once to a pipeline's shape (`bind`), then asked at every step: which
    weights each pass reads (`forward`, `recompute`, `backward`), at which rate each stage learns (`rate_factors`), and
    what it does to gradients and update, in this order:

        per microbatch   transform_microbatch      (where `by_microbatch`)
        per step         transform_gradients, rate_factors, about_to_update, update, updated

    A subclass overrides what differs; each hook says what it must give.

    `buffers[name][s]` is a flat tensor of the size of stage s's weights (None where a stage has none); a `Read` may add
    a multiple of one to a version. `rings[name][s]` holds past tensors of that size by version. Both are checkpointed.
    """

    name: ClassVar[str] = ""
    """What `method.name` calls it. A class without a name is a base of others and no method."""

    title: ClassVar[str] = ""
    """What tables and figures call it."""

    order: ClassVar[int] = 100
    """Its place in tables: those of the paper come first, those of one place by name."""

    reference: ClassVar[str] = ""
    """Authors, title, where and when."""

    synchronous: ClassVar[bool] = True
    """Whether every pass of every step reads version t. Synchronous runs are the reference of all comparisons."""

    Options: ClassVar[type] = NoOptions
    """Its own options, a frozen dataclass of `settings` fields, each with a default. They lie under `method.` in the
    configuration, and `self.options` holds them."""

    takes: ClassVar[tuple[str, ...]] = ()
    """Which of T1, T2, T3, RECOMPUTATION and RUNTIME it can be had with; every other one is refused."""

    cannot: ClassVar[Mapping[str, str]] = {}
    """Why it cannot be had with one of these: the mathematical reason, which the user is shown."""

    only_slots: ClassVar[str | None] = None
    """The one kind of slots that it exists in, whatever `pipeline.slots` says; None: any."""

    costs: ClassVar[Mapping[str, Costs]] = {}
    """What it costs by the model, under the names that `pipemare plan` gives. Empty where no pipeline executes it."""

    study: ClassVar[str | None] = None
    """The study whose figures show it; None: those of all other studies."""

    @classmethod
    def refusal(cls, what: str) -> str | None:
        """Why this method cannot be had with `what` (T1, T2, T3, RECOMPUTATION or RUNTIME); None if it can."""
        return None if what in cls.takes else cls.cannot.get(what, "this method does not have it")

    @classmethod
    def check_takes(cls, what: str, remedy: str) -> None:
        """Raise UserError, with the reason and the `remedy`, unless this method can be had with `what`."""
        reason = cls.refusal(what)
        if reason is not None:
            raise UserError(f"method.name={cls.name} with {WORDS[what]}: {reason}; {remedy}")

    @classmethod
    def shape_refusal(cls, stages: int, microbatches: int, slots: str) -> str | None:
        """Why no pipeline of this shape can have the method, with the numbers and the nearest shape that can; None
        where it can."""
        return None

    @classmethod
    def label_of(cls, on: Sequence[str], options: Any) -> str:
        """What tables call a run: the name and what is `on` (of t1, t2, t3). `options` holds the `Options`."""
        return "+".join([cls.name, *on])

    @classmethod
    def has_label(cls, label: str) -> bool:
        """Whether `label` is one that `label_of` gives."""
        return label.split("+")[0] == cls.name

    @classmethod
    def file_of(cls, label: str) -> str:
        """The name of `label` in configs/method and in the names of runs."""
        return label.replace("+", "_")

    @classmethod
    def costs_of(cls, label: str) -> Costs | None:
        """Which of its `costs` a run of this label has."""
        return cls.costs.get(cls.name)

    @classmethod
    def drawn_delays(cls, tau: Sequence[float], options: Any) -> list[float] | None:
        """The mean delay of every stage, in steps, where delays are drawn at random and a pipeline's would be `tau`;
        None for a method that draws none."""
        return None

    @classmethod
    def resolved(cls, options: Any, steps_per_epoch: int) -> dict[str, Any]:
        """Values to put in the place of some `options` once the steps of an epoch are known: epochs as steps, say.

        Resolving resolved options must change nothing.
        """
        return {}

    def __init__(
        self,
        *,
        lr_rescheduling_steps: int = 0,
        decay: float | None = None,
        warmup_steps: int = 0,
        seed: int = 0,
        **options: Any,
    ) -> None:
        """T1 over K = `lr_rescheduling_steps`, T2 with D = `decay`, T3 over M = `warmup_steps`, all in steps and off
        by default; `seed` is for a method that draws at random; `options` are its own.

        Raises UserError for what this method refuses and for a value out of its range.
        """
        on = {T1: lr_rescheduling_steps != 0, T2: decay is not None, T3: warmup_steps != 0}
        for what in on:
            if on[what]:
                self.check_takes(what, "leave it out")
        for name, value in (("lr_rescheduling_steps", lr_rescheduling_steps), ("warmup_steps", warmup_steps)):
            if value < 0:
                raise UserError(f"{name}={value}: a number of optimizer steps, at least 0 (0 switches it off)")
        if decay is not None and not 0.0 < decay < 1.0:
            raise UserError(
                f"discrepancy_correction.decay={decay}: D must lie between 0 and 1 (both excluded); the default is "
                "e^-2 = 0.1353"
            )
        self.lr_rescheduling_steps, self.decay, self.warmup_steps = lr_rescheduling_steps, decay, warmup_steps
        self.seed, self._bound = seed, False
        self.options: Any = settings.filled(self.Options, options, "method.")
        self.label = self.label_of([SWITCHES[what] for what in on if on[what]], self.options)

    def bind(self, shape: Shape, weights: Sequence[Tensor], *, looks_back: bool = True) -> None:
        """Fix the pipeline's shape; `weights` are the stages' flat weights. A method object serves one pipeline: its
        buffers belong to those weights, so a second call raises UserError, and so does a shape that the method
        refuses, or one with recomputation where it refuses that.

        `looks_back`: the engine runs passes after their moment, as the emulator does, and so needs `rings` of what was
        there at that moment. A real pipeline runs each pass at its moment and has none.
        """
        if self._bound:
            raise UserError(
                f"this {type(self).__name__} is already bound to a pipeline, whose weights its buffers belong to; "
                "make a new method object for every engine"
            )
        if shape.segment is not None:
            self.check_takes(RECOMPUTATION, "leave it out")
        reason = self.shape_refusal(shape.stages, shape.microbatches, self.only_slots or shape.slots)
        if reason is not None:
            raise UserError(f"method.name={self.name}: {reason}")
        self.stages, self.microbatches = shape.stages, shape.microbatches
        self.slots, self.segment = self.only_slots or shape.slots, shape.segment
        self.delays = slot_delays(shape.stages, self.slots)
        self.tau = mean_delays(shape.stages, shape.microbatches, self.slots)
        self.recompute_delays = [0] * shape.stages
        if shape.segment is not None:
            self.recompute_delays = recompute_delays(shape.stages, shape.segment)
        self.buffers: dict[str, list[Tensor | None]] = {}
        self.rings: dict[str, list[Ring | None]] = {}
        self._looks_back = looks_back
        self.prepare(weights)
        self._bound = True

    def prepare(self, weights: Sequence[Tensor]) -> None:
        """Derive what the method needs from the shape that `bind` has just fixed; make its buffers and rings."""

    def add_buffer(self, name: str, weights: Sequence[Tensor], wanted: Sequence[bool]) -> None:
        """`buffers[name]`: zeros of the weights' size for each stage that is wanted, in one block."""
        sizes = [flat.numel() if want else 0 for flat, want in zip(weights, wanted, strict=True)]
        together = weights[0].new_zeros(sum(sizes))
        self.buffers[name] = [part if want else None for part, want in zip(together.split(sizes), wanted, strict=True)]

    def add_rings(self, name: str, weights: Sequence[Tensor], lengths: Sequence[int], always: bool = False) -> None:
        """`rings[name]`: past tensors of the weights' size, `lengths[s]` of them for stage s. None at all for an engine
        that never looks back, unless the method needs them `always`: its backwards read what is past in a real pipeline
        too."""
        if self._looks_back or always:
            from pipemare_exp.pipeline.weights.history import make_rings

            self.rings[name] = make_rings(weights, lengths)

    def forward(self, step: int, microbatch: int) -> list[Read]:
        """What the forward of microbatch n = `microbatch` (0 to N-1) of step t = `step` reads, one `Read` a stage.

        The engine may ask more than once, and for the microbatches of a step in any order; steps come in order. A
        version is at most t and at least t - `depths()[s]`, and never below 0.
        """
        return [Read(step)] * self.stages

    def backward(self, step: int, microbatch: int) -> list[Read]:
        """What the backward of that microbatch reads, as `forward` says it. The activations are those of its forward,
        or of its recomputation where there is one."""
        return [Read(step)] * self.stages

    def recompute(self, step: int, microbatch: int) -> list[Read]:
        """What the recomputation of that microbatch's activations reads; asked only with segments (`self.segment`)."""
        return self.backward(step, microbatch)

    def while_current(self, stage: int, read: Read) -> Read:
        """The same weights as `read`, what a forward or a recomputation of `stage` reads, asked for while
        `read.version` is current.

        A pipeline reads at that moment; the emulator reads later, from a ring. A method that gives a version to a ring
        when it is updated (`about_to_update`) therefore answers with what the ring's entry will be made from.
        """
        return read

    def depths(self) -> list[int | None]:
        """How many versions before the current one each stage's reads reach back, None for a stage that only ever
        reads its current weights as they are. Asked once, after `bind`: so many past versions are kept. A read beyond
        them is a LookupError, never a newer version."""
        return [None] * self.stages

    def rate_factors(self, step: int) -> list[float]:
        """What the base rate of step t = `step` is multiplied with at each stage (T1: see `rescheduled`)."""
        return [1.0] * self.stages

    def prepare_optimizer(self, optimizer: StageOptimizer) -> None:
        """Called once, after `bind`, with the optimizer that will make the updates: look at its kind and its options,
        set options of a stage's own (`optimizer.groups(stage)`). Raise UserError for one that does not fit."""

    def by_microbatch(self) -> bool:
        """Whether `transform_microbatch` wants to see each microbatch's gradients. Asked once, after `bind`; it costs
        one more sum of gradients and an addition per microbatch."""
        return False

    def transform_microbatch(self, step: int, microbatch: int, gradients: Sequence[Tensor], history: History) -> None:
        """Change the gradients of microbatch n = `microbatch` of step t = `step` in place: one flat tensor a stage, of
        length 0 where an engine holds the stage elsewhere. The weights that it was computed with are
        `history.version(stage, self.forward(step, microbatch)[stage].version)`, the current ones
        `history.version(stage, step)`; both are to be read, one after the other, and not changed."""

    def transform_gradients(self, step: int, gradients: Sequence[Tensor]) -> None:
        """Change the gradients of step t = `step` in place: one flat tensor a stage, the sum over the step's
        microbatches, after clipping and before the optimizer."""

    def about_to_update(self, step: int, history: History) -> None:
        """Use version t = `step` before update t replaces it; `history.version(stage, k)` is any version that
        `depths` keeps, to be read and not changed."""

    def update(self, step: int, optimizer: StageOptimizer) -> None:
        """Make update t = `step`: the live weights are w_t and become w_{t+1}. `optimizer.step()` is what the optimizer
        makes of it by itself; afterwards `optimizer.direction` and `optimizer.rates` say what can be extrapolated.
        """
        optimizer.step()

    def tracks(self) -> list[bool]:
        """For which stages `updated` wants the change of the weights. Asked once, after `bind`; finding the change
        costs a copy of the stage's weights."""
        return [False] * self.stages

    def updated(self, step: int, changes: Iterable[Tensor | None]) -> None:
        """After update t = `step`: `changes` gives w_{t+1} - w_t stage by stage, None where not `tracks()[s]`; each
        is to be read before the next one is asked for, and not kept."""

    def state_dict(self) -> dict:
        """What a checkpoint must hold: `buffers` and `rings`, to which a method adds what else it draws or counts."""
        rings = {name: [None if ring is None else ring.data for ring in rings] for name, rings in self.rings.items()}
        return {"buffers": self.buffers, "rings": rings}

    def load_state_dict(self, state: dict) -> None:
        """Put back what `state_dict` gave, into the tensors that `bind` made. Training then goes on bit for bit."""
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
    takes: ClassVar[tuple[str, ...]] = (T1, T3, RECOMPUTATION, RUNTIME)

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


def rescheduled(delays: Sequence[float], since: int, steps: int) -> list[float]:
    """T1's factors `since` steps after asynchronous training began: max(tau_i, 1)^-p, p = 1 - min(since/K, 1).

    1 before that (`since` < 0) and for K = `steps` = 0. The clamp keeps T1 from raising a rate.
    """
    if since < 0 or since >= steps:
        return [1.0] * len(delays)
    power = 1.0 - since / steps
    return [max(delay, 1.0) ** -power for delay in delays]
