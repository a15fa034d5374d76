"""The configuration of a run: loaded, resolved against a model and a task, and identified by a hash.

load(overrides) -> Config          what files and command line say, validated
resolve(cfg, units, steps) -> Config   stages, boundaries and steps filled in; what has no effect taken out
config_hash(resolved) -> str       the identity of the run
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from pipemare_exp import methods
from pipemare_exp.errors import UserError
from pipemare_exp.experiment.config import folder as config_folder
from pipemare_exp.experiment.config import yaml_text
from pipemare_exp.experiment.config.schema import Config, LrRescheduling, MethodConfig, SyncWarmup
from pipemare_exp.experiment.config.validate import check, from_tree
from pipemare_exp.pipeline.method import SWITCHES

NOT_IDENTITY = (
    "runs",
    "tracking",
    "progress",
    "log_every",
    "checkpoint",
    "data.root",
    "threads",
    "engine.ranks",
    "engine.flush",
    "engine.timeout",
    "engine.max_restarts",
    "engine.graphs",
    "engine.history",
)
"""Settings that cannot change what is learnt. engine.graphs replays the kernels of the eager step in their order, bit
for bit (`pipemare gpu graphs` compares them on the machine at hand), and engine.history only copies. The number of
threads may change the last bits of a sum on some machines, as the machine itself may; both are recorded in meta.json
and neither names a run."""


def load(overrides: Sequence[str] = ()) -> Config:
    """The configuration that the command line's overrides stand for. Raises UserError."""
    from pipemare_exp.experiment.config import compose  # Hydra: a run from a plain tree does without it

    return from_mapping(compose.compose(overrides))


def from_mapping(tree: Mapping[str, Any]) -> Config:
    """The configuration of a plain tree (a run's config.yaml, or composed files). Raises UserError."""
    cfg = from_tree(tree, Config, also=tuple(config_folder.groups()))
    check(cfg)
    return cfg


def to_mapping(cfg: Config) -> dict[str, Any]:
    """`cfg` as plain dicts, lists and scalars; `from_mapping` takes it back."""
    return json.loads(json.dumps(asdict(cfg)))


def to_yaml(cfg: Config) -> str:
    """`cfg` as YAML, lists on one line."""
    return yaml_text.dumps(to_mapping(cfg))


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
) -> Config:
    """`cfg` with everything decided: stages and boundaries, epochs of T1 and T3 turned into steps, the label.

    `sizes`: the number of weights of each weight unit, in forward order; `pieces`: the first unit of each piece of
    the model, needed where `cuts_at_pieces(cfg)`; `subset`: the task's number of training examples where the
    published set has more, which then belongs to the run's name. Settings that a switched-off part
    would have are set to None, so that the same training has the same hash. Resolving a resolved
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
        data=replace(cfg.data, subset=subset),
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


def total_steps(cfg: Config) -> int:
    """Updates that the schedule spans (epochs times steps an epoch); `max_steps` may end the run before."""
    assert cfg.steps_per_epoch is not None, "resolve the configuration first"
    return cfg.epochs * cfg.steps_per_epoch


def last_step(cfg: Config) -> int:
    """Updates after which the run ends."""
    return min(total_steps(cfg), cfg.max_steps or total_steps(cfg))


def identity(cfg: Config) -> dict[str, Any]:
    """What names a run: the resolved configuration less NOT_IDENTITY and less what is not set (None)."""
    return _pruned(to_mapping(cfg), "")


def _pruned(tree: dict[str, Any], path: str) -> dict[str, Any]:
    kept = {}
    for key, value in tree.items():
        where = f"{path}{key}"
        if where in NOT_IDENTITY or value is None:
            continue
        inner = _pruned(value, f"{where}.") if isinstance(value, dict) else value
        if inner != {}:
            kept[key] = inner
    return kept


def config_hash(cfg: Config) -> str:
    """sha256 (hexadecimal) of the canonical JSON of `identity(cfg)`."""
    canonical = json.dumps(identity(cfg), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


def run_name(cfg: Config) -> str:
    """The name of the run's folder: <task>-<method>-<scale>-s<seed>-<hash8>; <task>_<examples> on a subset."""
    name = methods.file_of(cfg.method.label or label(cfg.method))
    task = f"{cfg.task.name}_{cfg.data.subset}" if cfg.data.subset else cfg.task.name
    return f"{task}-{name}-{cfg.scale}-s{cfg.seed}-{config_hash(cfg)[:8]}"
