"""Which pieces each stage of a real pipeline gets; a cut that cannot be is refused with the reason."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from pipemare_exp.errors import UserError
from pipemare_exp.pipeline.model.recompute import piece_starts
from pipemare_exp.pipeline.model.units import Piece, Unit, group, pieces


def cut(model: nn.Module, units: Sequence[Unit], boundaries: Sequence[int]) -> list[list[Piece]]:
    """The pieces of each stage.

    Raises UserError for more stages than pieces, for a stage that would begin inside a piece, and for a weight that
    several stages would use.
    """
    parts = pieces(model)
    starts = piece_starts(model, units, parts)
    if len(boundaries) > len(parts):
        raise UserError(
            f"pipeline.stages={len(boundaries)}, but {type(model).__name__} can be cut into {len(parts)} pieces only, "
            f"and engine=runtime gives every stage at least one: take at most {len(parts)} stages"
        )
    inside = [unit for unit in boundaries if unit not in starts]
    if inside:
        raise UserError(
            f"pipeline.boundaries: a stage would begin at weight unit {inside[0]} ({units[inside[0]].name}), inside a "
            f"piece that cannot be cut; the {len(parts)} pieces begin at units {starts}. Choose among those, or leave "
            "pipeline.boundaries out and set pipeline.stages and pipeline.cut=pieces"
        )
    edges = [starts.index(unit) for unit in boundaries] + [len(parts)]
    stages = [parts[a:b] for a, b in zip(edges, edges[1:], strict=False)]
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    owner = {name: s for s, stage in enumerate(group(units, boundaries)) for unit in stage for name in unit.parameters}
    for s, stage in enumerate(stages):
        for piece in stage:
            for parameter in (p for module in piece.modules for p in module.parameters()):
                name = names[id(parameter)]
                if owner.get(name, s) != s:
                    raise UserError(
                        f"{name} is tied: stages {owner[name]} and {s} both use it, and with engine=runtime every "
                        "stage has weights of its own, updated at moments of its own; untie it (model.tying=none), "
                        "take a cut that keeps its uses in one stage, or take engine=emulator"
                    )
    return stages
