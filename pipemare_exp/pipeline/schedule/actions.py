"""What a schedule is, and what can be read off it: utilization, activations in flight, a picture.

A schedule is plain data: for each stage the list of its actions, each with the slot in which it runs.
Everything below is derived from those actions. `orders` makes schedules, `versions` says what they read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from pipemare_exp.errors import UserError, suggest

SLOT_KINDS = ("duplex", "alternating")


class Op(StrEnum):
    """What a stage does; the order of the members is the order inside a slot.

    A backward either runs whole (B) or in two operations: I makes the gradient of the stage's inputs, which the stage
    before waits for, and W later that of its weights, which only the update waits for (Qi et al., arXiv 2401.10241).
    """

    FORWARD = "F"
    RECOMPUTE = "R"
    BACKWARD = "B"
    INPUT_GRADIENT = "I"
    WEIGHT_GRADIENT = "W"
    UPDATE = "U"


WORK = frozenset({Op.FORWARD, Op.BACKWARD, Op.INPUT_GRADIENT, Op.WEIGHT_GRADIENT})
"""The operations that keep a device busy. Recomputation is not counted (see `Schedule.utilization`)."""

ORDER_IN_SLOT = {op: rank for rank, op in enumerate(Op)}


@dataclass(frozen=True, slots=True)
class Action:
    """One operation of one stage.

    op          what the stage does
    step        t, the step (= minibatch) that it belongs to
    microbatch  g = t N + n, counted over the whole run; an update has none of its own and names the last one of
                its step, whose backward it follows
    slot        when it runs, counted from 0

    Prints with its microbatch, an update with its step: `F3`, `R2`, `B1`, `U0`.
    """

    op: Op
    step: int
    microbatch: int
    slot: int

    def __str__(self) -> str:
        return f"{self.op}{self.step if self.op is Op.UPDATE else self.microbatch}"


@dataclass(frozen=True)
class Schedule:
    """Who does what when, from the first slot of the fill to the last of the drain.

    name          gpipe, 1f1b, interleaved, zb_h1, ..., pipemare
    slots         "duplex": a forward and a backward (and a recomputation) fit in one slot; "alternating":
                  one operation of a device
    stages        P; stages are numbered from 0 in forward order
    microbatches  N, the microbatches of a minibatch
    steps         minibatches (= optimizer steps) in the schedule
    start         steps before this one (M) run flushed, in alternating slots; `steps` if all of them do
    segment       S, stages of a recomputation segment, or None where every activation is kept
    columns       one tuple per stage: its actions in the order in which it executes them
    stashes       whether a backward reads the version that its own forward read (weight stashing)
    placement     the device of each stage, where devices hold several; None: stage s is alone on device s
    """

    name: str
    slots: str
    stages: int
    microbatches: int
    steps: int
    start: int
    segment: int | None
    columns: tuple[tuple[Action, ...], ...]
    stashes: bool = False
    placement: tuple[int, ...] | None = None

    @property
    def devices(self) -> int:
        """How many devices the stages lie on."""
        return self.stages if self.placement is None else 1 + max(self.placement)

    def device_of(self, stage: int) -> int:
        """The device that `stage` lies on."""
        return stage if self.placement is None else self.placement[stage]

    def stages_on(self, device: int) -> list[int]:
        """The stages of `device`, in forward order."""
        return [stage for stage in range(self.stages) if self.device_of(stage) == device]

    def device_columns(self) -> list[list[tuple[int, Action]]]:
        """What each device executes: (stage, action) in order. Everything lies in one order, duplex slots too."""
        columns: list[list[tuple[int, Action]]] = [[] for _ in range(self.devices)]
        for stage, column in enumerate(self.columns):
            columns[self.device_of(stage)] += [(stage, action) for action in column]
        if self.placement is not None:
            for mine in columns:
                mine.sort(key=lambda item: (item[1].slot, ORDER_IN_SLOT[item[1].op]))
        return columns

    @property
    def length(self) -> int:
        """Slots from the first action to the last, fill and drain included."""
        return 1 + max(column[-1].slot for column in self.columns)

    @property
    def flushed_slots(self) -> int:
        """Slots of the flushed steps; the asynchronous part begins in this slot (at stage 0)."""
        if self.start >= self.steps:
            return self.length
        return next(a.slot for a in self.columns[0] if a.op is Op.FORWARD and a.step == self.start)

    def actions(self) -> Iterator[tuple[int, Action]]:
        """(stage, action) in an order in which one process could execute them: by slot, then as in a slot."""
        tagged = ((stage, action) for stage, column in enumerate(self.columns) for action in column)
        return iter(sorted(tagged, key=lambda item: (item[1].slot, ORDER_IN_SLOT[item[1].op], item[0])))

    def segment_of(self, stage: int) -> range:
        """The stages of the recomputation segment that holds `stage`; ValueError without recomputation.

        Segments are cut from the first stage on, so the one at the loss is shorter if S does not divide P.
        """
        if self.segment is None:
            raise ValueError(f"{self.name} schedule keeps every activation (segment=None): it has no segments")
        return recompute_segment(self.stages, self.segment, stage)

    def utilization(self, steady: bool = False) -> float:
        """Busy over available operation slots; an operation is a forward, a backward or one half of a backward.

        Every operation counts one slot here, however long it takes; `timing` walks a schedule with times. Available
        are, for each device, 2 operations a slot in duplex slots and 1 in alternating slots (those of flushed steps
        always count 1). Recomputation fills no slot that a forward or backward could have: it
        is neither busy nor available. With `steady` only the slots count in which no stage is still filling
        or already draining: from the last stage-first backward to the first stage-last forward of the
        asynchronous part. A schedule that is flushed throughout repeats one minibatch, fill and drain
        included: both numbers agree. Raises ValueError if the schedule is too short to have a steady state.
        """
        if steady and self.start < self.steps:
            first, last = self._steady_slots()
        else:
            first, last = 0, self.length - 1
        busy = sum(a.op in WORK and first <= a.slot <= last for column in self.columns for a in column)
        wide = 2 if self.slots == "duplex" else 1
        flushed = max(0, min(last + 1, self.flushed_slots) - first)
        available = self.devices * (flushed + wide * (last + 1 - first - flushed))
        return busy / available

    def _steady_slots(self) -> tuple[int, int]:
        """First and last slot of the steady state of the asynchronous part."""
        backwards = ((a for a in column if a.op is Op.BACKWARD) for column in self.columns)
        first = max(next(a.slot for a in column if a.step >= self.start) for column in backwards)
        last = min(max(a.slot for a in column if a.op is Op.FORWARD) for column in self.columns)
        if last < first:
            count = (self.steps - self.start) * self.microbatches
            raise ValueError(
                f"no steady state: {count} asynchronous microbatches in {self.stages} stages drain before "
                f"the pipeline is full; use more steps"
            )
        return first, last

    def in_flight(self, stage: int) -> list[int]:
        """Activations held by a stage at the end of every slot, in microbatch-at-one-stage units.

        A microbatch's activations are held from its forward to its backward, or to its weight gradient where the
        backward is split: that takes the inputs of the stage's layers too. With recomputation: from its
        recomputation to its backward, and the first stage of a segment also holds the segment's input from
        the forward to the recomputation (which turns that input into the activations; it is not counted
        twice).
        """
        column = self.columns[stage]
        change = [0] * self.length
        recomputed = {a.microbatch for a in column if a.op is Op.RECOMPUTE}
        keeps_input = bool(recomputed) and stage == self.segment_of(stage).start
        for action in column:
            if action.op is Op.FORWARD:
                change[action.slot] += action.microbatch not in recomputed or keeps_input
            elif action.op is Op.RECOMPUTE:
                change[action.slot] += not keeps_input
            elif action.op in (Op.BACKWARD, Op.WEIGHT_GRADIENT):
                change[action.slot] -= 1
        held, counts = 0, []
        for difference in change:
            held += difference
            counts.append(held)
        return counts

    def activations(self) -> list[int]:
        """Activations held by all stages together at the end of every slot (unit of `in_flight`)."""
        return [sum(held) for held in zip(*map(self.in_flight, range(self.stages)), strict=True)]

    def peak_activations(self) -> list[int]:
        """Per stage, the most activations it holds at the end of a slot: what it must have room for."""
        return [max(self.in_flight(stage)) for stage in range(self.stages)]

    def device_peaks(self) -> list[float]:
        """Per device, the most activations it holds at the end of a slot, in microbatches at one whole device.

        Where a device holds v stages, each is a v-th of what a device with one stage would hold, and so counts 1/v.
        """
        peaks = []
        for device in range(self.devices):
            mine = self.stages_on(device)
            held = zip(*map(self.in_flight, mine), strict=True)
            peaks.append(max(map(sum, held)) / len(mine))
        return peaks

    def render(self) -> str:
        """The schedule as a grid: a row per stage, a column per slot.

        `F3/B1` is a slot that runs both; `*` marks an update at the end of the slot, `.` an idle one.
        """
        grid = [[""] * self.length for _ in range(self.stages)]
        for stage, action in self.actions():
            cell = grid[stage][action.slot]
            mark = "*" if action.op is Op.UPDATE else ("/" if cell else "") + str(action)
            grid[stage][action.slot] = cell + mark
        rows = [["slot", *map(str, range(self.length))]]
        rows += [[f"stage {stage}", *(cell or "." for cell in cells)] for stage, cells in enumerate(grid)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = (" ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
        return "\n".join(line.rstrip() for line in lines)

    def __str__(self) -> str:
        return self.render()


def check_slots(slots: str) -> None:
    """UserError unless `slots` is a kind of slot."""
    if slots not in SLOT_KINDS:
        raise UserError(f"slots={slots!r}; allowed: {', '.join(SLOT_KINDS)}{suggest(str(slots), SLOT_KINDS)}")


def recompute_segment(stages: int, segment: int, stage: int) -> range:
    """The stages of the segment of S = `segment` stages that holds `stage`; the last one may be shorter."""
    first = stage - stage % segment
    return range(first, min(first + segment, stages))
