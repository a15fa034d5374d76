"""The shape of a pipeline: how many stages and microbatches, which slots, and which weights each stage has.

A method needs the numbers alone (`Shape`); an engine needs the model's weight units as well (`Pipeline`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from pipemare_exp.errors import UserError
from pipemare_exp.pipeline.model.units import Unit, group
from pipemare_exp.pipeline.schedule.actions import check_slots


@dataclass(frozen=True)
class Shape:
    """The numbers on which delays depend. Raises UserError for values that no pipeline can have.

    - `stages`: P;
    - `microbatches`: N, the microbatches of a minibatch;
    - `slots`: "duplex", where a forward and a backward share a slot, or "alternating", where each takes one;
    - `segment`: S, the stages of a recomputation segment, or None where every activation is kept.
    """

    stages: int
    microbatches: int
    slots: str = "duplex"
    segment: int | None = None

    def __post_init__(self) -> None:
        if self.stages < 1:
            raise UserError(f"pipeline.stages={self.stages}: at least one stage is needed")
        if self.microbatches < 1:
            raise UserError(f"pipeline.microbatches={self.microbatches}: at least one microbatch is needed")
        check_slots(self.slots)
        if self.segment is None:
            return
        if self.slots != "duplex":
            raise UserError(
                f"pipeline.recompute={self.segment} with pipeline.slots={self.slots}: recomputation needs duplex "
                "slots; where a slot holds one operation it would take the slots of others and so change every delay"
            )
        if not 1 <= self.segment <= self.stages:
            raise UserError(
                f"pipeline.recompute={self.segment}: a segment has 1 to {self.stages} stages, the pipeline's number"
            )


@dataclass(frozen=True)
class Pipeline:
    """A model's weight units cut into the stages of a pipeline. Raises UserError for a cut that cannot be.

    - `units`: the weight units in forward order;
    - `boundaries`: the first unit of each stage, 0 first;
    - `microbatches`, `slots`, `segment`: as in `Shape`;
    - `split`: every stage of `boundaries` is made into this many, each with a part of its weights (emulator only).
    """

    units: Sequence[Unit]
    boundaries: Sequence[int]
    microbatches: int
    slots: str = "duplex"
    segment: int | None = None
    split: int = 1

    def __post_init__(self) -> None:
        if self.split < 1:
            raise UserError(f"pipeline.split={self.split}: must be at least 1, the parts that each stage is made into")
        if self.segment is not None and self.split != 1:
            raise UserError(
                f"pipeline.recompute={self.segment} with pipeline.split={self.split}: a split unit cannot be cut"
            )
        _ = self.stage_units, self.shape  # their checks

    @cached_property
    def stage_units(self) -> list[list[Unit]]:
        """The units of each stage of `boundaries`."""
        return group(self.units, list(self.boundaries))

    @property
    def stage_parameters(self) -> list[list[str]]:
        """The names of the parameters of each stage of `boundaries`, in forward order."""
        return [[name for unit in stage for name in unit.parameters] for stage in self.stage_units]

    @property
    def stages(self) -> int:
        """P, the parts of split stages counted each."""
        return len(self.boundaries) * self.split

    @cached_property
    def shape(self) -> Shape:
        """The numbers on which delays depend."""
        return Shape(self.stages, self.microbatches, self.slots, self.segment)
