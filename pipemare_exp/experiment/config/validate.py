"""Which settings do not go together, and why?"""

from __future__ import annotations

from pipemare_exp import data
from pipemare_exp.errors import UserError
from pipemare_exp.experiment.config.schema import (
    Config,
    MethodConfig,
    OptimizerConfig,
    ScheduleConfig,
)
from pipemare_exp.pipeline.clipping import check_clip_of_runtime
from pipemare_exp.pipeline.method import RECOMPUTATION, RUNTIME, T1, T3

LONGEST_EXPERIMENT = 200
"""Bytes of an experiment's name: a file system takes 255."""


def check(cfg: Config) -> None:
    """Raise UserError, with the reason, for settings that do not go together."""
    if cfg.data.name != cfg.task.name:
        raise UserError(
            f"data.name={cfg.data.name} with task.name={cfg.task.name}: a task has its own data; choose both by "
            f"task={cfg.task.name}, leave data= and .name out"
        )
    size = "max_tokens" if _translates(cfg) else "batch_size"
    if getattr(cfg.data, size) is None:
        raise UserError(f"data.{size} is not set, and task {cfg.task.name} needs it: the size of a minibatch")
    if size == "batch_size" and cfg.pipeline.microbatches > (cfg.data.batch_size or 0):
        raise UserError(
            f"pipeline.microbatches={cfg.pipeline.microbatches} with data.batch_size={cfg.data.batch_size}: "
            "a microbatch needs at least one example; lower the first or raise the second"
        )
    check_experiment(cfg.tracking.experiment)
    _check_engine(cfg)
    _check_precision(cfg)
    _check_method(cfg.method)
    _check_recomputation(cfg)
    _check_optimizer(cfg.optimizer)
    _check_schedule(cfg.schedule)
    boundaries, stages = cfg.pipeline.boundaries, cfg.pipeline.stages
    if boundaries is not None:
        if boundaries[:1] != (0,) or any(a >= b for a, b in zip(boundaries, boundaries[1:], strict=False)):
            raise UserError(f"pipeline.boundaries={list(boundaries)}: it must begin with 0 and ascend")
        if stages is not None and stages != len(boundaries):
            raise UserError(f"pipeline.stages={stages} but pipeline.boundaries names {len(boundaries)}; set one only")


def check_experiment(name: str) -> None:
    """Raise UserError unless MLflow's experiment `name` is the name of one folder, in which its artifacts lie."""
    plain = name.isprintable() and not set(name) & set("/\\:") and not name.startswith((".", " ", "~"))
    if not name or not plain or len(name.encode()) > LONGEST_EXPERIMENT:
        raise UserError(
            f"tracking.experiment={name!r}: it names a folder of artifacts beside the store; it takes 1 to "
            f"{LONGEST_EXPERIMENT} bytes of letters, digits, spaces and marks, without / \\ : and no . or ~ first"
        )


def _translates(cfg: Config) -> bool:
    return data.describe(cfg.task.name).task == "translation"


def _check_method(method: MethodConfig) -> None:
    for group in method.on():
        method.kind.check_takes(group, f"set method.{group}.enabled=false or take another method")
    t1, t2, t3 = method.lr_rescheduling, method.discrepancy_correction, method.sync_warmup
    for name, switch in ((T1, t1), (T3, t3)):
        if switch.enabled and (switch.steps is None) == (switch.epochs is None):
            both = "both" if switch.steps is not None else "neither"
            raise UserError(
                f"method.{name} has {both} of steps ({switch.steps}) and epochs ({switch.epochs}): "
                "set one, and the other to null"
            )
    if t2.enabled and t2.decay is None:
        raise UserError("method.discrepancy_correction.decay is not set; D = e^-2 = 0.1353 is the usual value")


def _check_engine(cfg: Config) -> None:
    engine, optimizer = cfg.engine, cfg.optimizer
    if engine.name == "emulator":
        named = [key for key in ("ranks", "flush", "timeout", "max_restarts") if getattr(engine, key) is not None]
        if named:
            raise UserError(f"engine.{named[0]} with engine=emulator: it is a setting of the other, engine=runtime")
        return
    if engine.graphs == "on":
        raise UserError("engine.graphs=on with engine=runtime: only the emulator captures CUDA graphs; leave it out")
    if cfg.diagnostics.every_steps is not None or cfg.diagnostics.at_evaluations:
        raise UserError(
            "diagnostics with engine=runtime: they compare the weights of a step with those that its forwards read, "
            "and a rank of a real pipeline has not kept these; leave them out, or take engine=emulator, which trains "
            "the same weights"
        )
    if engine.history == "host":
        raise UserError("engine.history=host with engine=runtime: only the emulator knows it; leave it out")
    check_clip_of_runtime(optimizer.clip)
    if cfg.pipeline.split not in (None, 1):
        raise UserError(
            f"pipeline.split={cfg.pipeline.split} with engine=runtime: a stage runs whole pieces of the model, parts "
            "of a weight unit exist in the emulator only; leave pipeline.split out"
        )
    cfg.method.kind.check_takes(RUNTIME, "take engine=emulator")
    if engine.flush == "1f1b" and not cfg.method.kind.synchronous:
        raise UserError(
            f"engine.flush=1f1b with method.name={cfg.method.name}: it orders the minibatches of a synchronous method; "
            "leave it out"
        )


def _check_precision(cfg: Config) -> None:
    if cfg.precision != "bf16":
        return
    reason = None
    if cfg.engine.name != "emulator":
        reason = f"engine={cfg.engine.name}: messages between ranks are in fp32"
    elif cfg.pipeline.recompute is not None:
        reason = f"pipeline.recompute={cfg.pipeline.recompute}: pieces are run by themselves, in fp32 only"
    elif data.describe(cfg.task.name).task != "image_classification":
        reason = f"task={cfg.task.name}: it has been tried on images only, and attention's softmax needs more bits"
    if reason is not None:
        raise UserError(f"precision=bf16 with {reason}; leave precision out")


def _check_recomputation(cfg: Config) -> None:
    segment = cfg.pipeline.recompute
    if segment is None:
        return
    cfg.method.kind.check_takes(RECOMPUTATION, "set pipeline.recompute=null")
    only = cfg.method.kind.only_slots
    if (only or cfg.pipeline.slots) == "alternating":
        where = f"method.name={cfg.method.name}, which exists in {only} slots only" if only else "pipeline=alternating"
        raise UserError(
            f"pipeline.recompute={segment} with {where}: a slot that holds one operation has no room for a "
            "recomputation, which would change all delays; set pipeline.recompute=null"
        )
    if cfg.pipeline.split not in (None, 1):
        raise UserError(
            f"pipeline.recompute={segment} with pipeline.split={cfg.pipeline.split}: a split unit cannot be cut; "
            "set one of them only"
        )


def _check_optimizer(optimizer: OptimizerConfig) -> None:
    if optimizer.nesterov and not optimizer.momentum:
        raise UserError("optimizer.nesterov=true needs optimizer.momentum above 0: it looks ahead along the momentum")
    if optimizer.betas is not None and not all(0.0 <= beta < 1.0 for beta in optimizer.betas):
        raise UserError(f"optimizer.betas={list(optimizer.betas)}: both must be at least 0 and below 1")
    if optimizer.clip != "none" and optimizer.clip_norm is None:
        raise UserError(f"optimizer.clip={optimizer.clip} needs optimizer.clip_norm, the largest norm allowed")


def _check_schedule(schedule: ScheduleConfig) -> None:
    if schedule.name == "step_decay":
        if not schedule.milestones or schedule.factor is None:
            raise UserError("schedule.name=step_decay needs schedule.milestones and schedule.factor")
        if min(schedule.milestones) <= 0.0:
            raise UserError(f"schedule.milestones={list(schedule.milestones)}: all must be above 0")
    if schedule.name == "inverse_sqrt" and not schedule.warmup_steps:
        raise UserError("schedule.name=inverse_sqrt needs schedule.warmup_steps of at least 1: it decays from there")
