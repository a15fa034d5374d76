"""What do settings come to once model and data are known? Stages, steps, label; what has no effect is taken out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pipemare_exp.errors import UserError
from pipemare_exp.experiment.config.schema import Config, LrRescheduling, MethodConfig, SyncWarmup
from pipemare_exp.pipeline.method import SWITCHES


def label(method: MethodConfig) -> str:
    """gpipe, pipedream, async (nothing), t1, t2, t1+t2, t1+t2+t3, hogwild, hogwild+t1: what tables call a method."""
    return method.kind.label_of([SWITCHES[group] for group in method.on()], method)


def cuts_at_pieces(cfg: Config) -> bool:
    """Whether `resolve` has to choose boundaries that fall on pieces."""
    pipeline = cfg.pipeline
    whole = pipeline.recompute is None and cfg.engine.name == "emulator"
    cut = pipeline.cut or ("units" if whole else "pieces")
    return pipeline.boundaries is None and cut == "pieces"


def resolve(
    cfg: Config,
    sizes: Sequence[int],
    steps_per_epoch: int,
    pieces: Sequence[int] | None = None,
    subset: int | None = None,
    text: str | None = None,
) -> Config:
    """`cfg` with everything decided: stages and boundaries, epochs of T1 and T3 turned into steps, the label.

    `sizes`: the number of weights of each weight unit, in forward order; `pieces`: the first unit of each piece of
    the model, needed where `cuts_at_pieces(cfg)`; `subset`: the task's number of training examples where the
    published set has more, which then belongs to the run's name; `text`: the digest of its text. Settings that a
    switched-off part would have are set to None, so that the same training has the same hash. Resolving a resolved
    configuration changes nothing.
    """
    if cfg.steps_per_epoch not in (None, steps_per_epoch):
        raise UserError(
            f"the configuration was made for {cfg.steps_per_epoch} steps an epoch, but the data give "
            f"{steps_per_epoch}: they are not the data that it was made with"
        )
    if cfg.data.subset not in (None, subset):
        raise UserError(
            f"data.subset={cfg.data.subset}, but the training data are {subset or 'the whole set'}: the number is "
            "found from the data, leave it out"
        )
    if cfg.data.text not in (None, text):
        raise UserError(
            f"data.text={cfg.data.text}, but the text here is {text}: it is made from other versions of packages or "
            "files; install those of the run, or leave data.text out to train on this text"
        )
    steps = cfg.epochs * steps_per_epoch
    boundaries = cfg.pipeline.boundaries or _boundaries(cfg, sizes, pieces)
    if boundaries[-1] >= len(sizes):
        raise UserError(
            f"pipeline.boundaries ends with {boundaries[-1]}, but the model has {len(sizes)} weight units (0 "
            f"to {len(sizes) - 1})"
        )
    pipeline = replace(
        cfg.pipeline,
        stages=len(boundaries),
        boundaries=tuple(boundaries),
        slots=cfg.method.kind.only_slots or cfg.pipeline.slots,
        cut=None,
        recompute=_resolve_recompute(cfg, len(boundaries)),
        split=cfg.pipeline.split if cfg.pipeline.split != 1 else None,
    )
    return replace(
        cfg,
        precision=None if cfg.precision == "fp32" else cfg.precision,
        steps_per_epoch=steps_per_epoch,
        max_steps=cfg.max_steps if (cfg.max_steps or steps) < steps else None,
        data=replace(cfg.data, subset=subset, text=text),
        pipeline=pipeline,
        method=_resolve_method(cfg.method, steps_per_epoch),
        optimizer=_resolve_optimizer(cfg),
        schedule=_resolve_schedule(cfg),
    )


def _boundaries(cfg: Config, sizes: Sequence[int], pieces: Sequence[int] | None) -> Sequence[int]:
    from pipemare_exp.pipeline.model.units import choose_boundaries  # imports torch

    starts, what = list(range(len(sizes))), "weight units"
    if cuts_at_pieces(cfg):
        assert pieces is not None, "resolve needs the model's pieces"
        starts, what = list(pieces), "pieces that it can be cut into"
    stages = cfg.pipeline.stages or len(starts)
    if stages > len(starts):
        raise UserError(
            f"pipeline.stages={stages}, but {cfg.model.name} has only {len(starts)} {what} and a stage holds at least "
            f"one; take at most {len(starts)}"
        )
    costs = [sum(sizes[first:end]) for first, end in zip(starts, [*starts[1:], len(sizes)], strict=True)]
    return [starts[index] for index in choose_boundaries(costs, stages)]


def _resolve_recompute(cfg: Config, stages: int) -> int | None:
    """S as a number of stages."""
    recompute = cfg.pipeline.recompute
    if isinstance(recompute, str):
        from pipemare_exp.pipeline.schedule.costs import sqrt_segment

        return sqrt_segment(stages)
    if recompute is not None and recompute > stages:
        raise UserError(
            f"pipeline.recompute={recompute}, but the pipeline has only {stages} stages and a segment lies within it; "
            f"take at most {stages}"
        )
    return recompute


def _resolve_method(method: MethodConfig, steps_per_epoch: int) -> MethodConfig:
    correction = method.discrepancy_correction
    return replace(
        method,
        label=label(method),
        lr_rescheduling=_in_steps(method.lr_rescheduling, steps_per_epoch),
        sync_warmup=_in_steps(method.sync_warmup, steps_per_epoch),
        discrepancy_correction=correction if correction.enabled else replace(correction, decay=None),
        **method.kind.resolved(method, steps_per_epoch),
    )


def _in_steps(switch: Any, steps_per_epoch: int) -> Any:
    """T1 or T3 with its length in steps, at least one; no length where it is off."""
    if not switch.enabled:
        return type(switch)()
    steps = switch.steps if switch.epochs is None else max(round(switch.epochs * steps_per_epoch), 1)
    assert isinstance(switch, LrRescheduling | SyncWarmup)
    return replace(switch, steps=steps, epochs=None)


def _resolve_optimizer(cfg: Config) -> Any:
    optimizer = cfg.optimizer
    if optimizer.decay == "all" or not optimizer.weight_decay:
        optimizer = replace(optimizer, decay=None)
    if optimizer.name == "sgd":
        optimizer = replace(
            optimizer,
            betas=None,
            eps=None,
            momentum=optimizer.momentum or 0.0,
            nesterov=bool(optimizer.nesterov),
        )
    else:
        optimizer = replace(
            optimizer,
            momentum=None,
            nesterov=None,
            betas=optimizer.betas or (0.9, 0.999),
            eps=optimizer.eps if optimizer.eps is not None else 1e-8,
        )
    return optimizer if optimizer.clip != "none" else replace(optimizer, clip_norm=None)


def _resolve_schedule(cfg: Config) -> Any:
    schedule = cfg.schedule
    if schedule.name != "step_decay":
        schedule = replace(schedule, milestones=None, factor=None)
    if schedule.name != "cosine":
        schedule = replace(schedule, final_fraction=None)
    else:
        schedule = replace(schedule, final_fraction=schedule.final_fraction or 0.0)
    return replace(schedule, warmup_steps=schedule.warmup_steps or 0)
