"""Clipping of the summed gradients by their norm: what may be asked for, and of which engine."""

from __future__ import annotations

from pipemare_exp.errors import UserError

Clip = tuple[str, float] | None
"""None, or (over what the norm is taken, the largest norm): each "stage" by itself, or all of them ("global")."""


def check_clip(clip: Clip) -> None:
    """UserError for a clip that is none."""
    if clip is not None and (clip[0] not in ("stage", "global") or not clip[1] > 0):
        raise UserError(f"clip={clip}: must be None or ('stage' | 'global', a norm above 0)")


def check_clip_of_runtime(over: str, stages: int | None = None) -> None:
    """UserError where no real pipeline can take a norm `over` that. `stages` None: not known yet, taken for several."""
    if over == "global" and stages != 1:
        raise UserError(
            "optimizer.clip=global with engine=runtime: the norm over all stages is needed before any of them may "
            "update, but stages update at different moments; take optimizer.clip=stage, or engine=emulator"
        )
