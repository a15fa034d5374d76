"""From a configuration to the objects that train: task, model, stages, method, optimizer, emulator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

import torch
from torch import nn

from pipemare_exp import optimizers, settings, tasks
from pipemare_exp.errors import UserError
from pipemare_exp.experiment.config.lengths import total_steps
from pipemare_exp.experiment.config.resolve import cuts_at_pieces, resolve
from pipemare_exp.experiment.config.schema import Config, MethodConfig
from pipemare_exp.experiment.training.threads import Meter
from pipemare_exp.pipeline.emulator.emulator import Emulator
from pipemare_exp.pipeline.emulator.ways import Execution
from pipemare_exp.pipeline.method import Method
from pipemare_exp.pipeline.model.recompute import piece_starts
from pipemare_exp.pipeline.model.units import Unit, pieces, weight_units
from pipemare_exp.pipeline.shape import Pipeline
from pipemare_exp.pipeline.weights.precision import allow_tf32
from pipemare_exp.tasks.base import Task


@dataclass
class Prepared:
    """A resolved configuration with its data and its model, before anything of the training state exists."""

    cfg: Config
    task: Task
    model: nn.Module
    units: list[Unit]
    meter: Meter
    """Has watched the machine while data and model were made."""

    @property
    def pipeline(self) -> Pipeline:
        """The model's weight units as cut into stages."""
        wanted = self.cfg.pipeline
        assert wanted.boundaries is not None and not isinstance(wanted.recompute, str)
        return Pipeline(
            self.units,
            wanted.boundaries,
            wanted.microbatches,
            slots=wanted.slots,
            segment=wanted.recompute,
            split=wanted.split or 1,
        )

    def emulator(self) -> Emulator:
        """A fresh emulator at step 0. It takes hold of the model's parameters: call it once."""
        engine = self.cfg.engine
        return Emulator(
            self.model,
            self.pipeline,
            build_method(self.cfg.method, self.cfg.seed),
            build_optimizer(self.cfg),
            seed=self.cfg.seed,
            clip=clip(self.cfg),
            execution=Execution(engine.graphs or "auto", self.cfg.precision or "fp32", engine.history or "device"),
        )

    def rate(self) -> Callable[[int], float]:
        """alpha_base(t)."""
        options = {key: value for key, value in asdict(self.cfg.schedule).items() if value is not None}
        name = options.pop("name")
        return optimizers.rate_schedule(name, self.cfg.optimizer.rate, total_steps(self.cfg), **options)


def prepare(cfg: Config) -> Prepared:
    """Load the data, build the model, find its weight units, resolve `cfg` against them. Raises UserError."""
    meter = Meter()
    device = choose_device(cfg.device)
    if cfg.precision == "tf32" and device.type != "cuda":
        raise UserError("precision=tf32 on a CPU, which has no such arithmetic; leave it out, or take device=cuda")
    allow_tf32(cfg.precision == "tf32")
    cfg = replace(cfg, device=device.type)
    task = tasks.build(cfg, device, cfg.memory_format)
    if cfg.threads is not None:
        torch.set_num_threads(cfg.threads)  # after the imports, some of which set it too
    model = task.build_model()
    model.train()
    units = weight_units(model, task.probe)
    starts = piece_starts(model, units, pieces(model)) if cuts_at_pieces(cfg) else None
    sizes = [unit.numel for unit in units]
    resolved = resolve(cfg, sizes, task.steps_per_epoch, starts, task.subset, task.text)
    return Prepared(resolved, task, model, units, meter)


def choose_device(name: str) -> torch.device:
    """The device that auto, cpu or cuda stands for on this machine."""
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise UserError("device=cuda, but torch finds no usable GPU here; take device=cpu or device=auto")
    device = torch.device("cuda" if available and name != "cpu" else "cpu")
    if device.type == "cuda":
        # A resumed run must give the same bits: the fastest kernel of the day does not.
        torch.backends.cudnn.benchmark = False
        torch.backends.cudnn.deterministic = True
    return device


def build_method(method: MethodConfig, seed: int = 0) -> Method:
    """The method object of a resolved configuration; `seed` is for a method that draws at random."""
    t1, t2, t3 = method.lr_rescheduling, method.discrepancy_correction, method.sync_warmup
    return method.kind(
        lr_rescheduling_steps=(t1.steps or 0) if t1.enabled else 0,
        decay=t2.decay if t2.enabled else None,
        warmup_steps=(t3.steps or 0) if t3.enabled else 0,
        seed=seed,
        **{name: getattr(method, name) for name in settings.names(method.kind.Options)},
    )


def build_optimizer(cfg: Config) -> Callable[[list[dict]], torch.optim.Optimizer]:
    """The maker of the torch optimizer; rates are set per stage by the emulator."""
    options = {key: value for key, value in asdict(cfg.optimizer).items() if value is not None}
    for name in ("rate", "clip", "clip_norm"):
        options.pop(name, None)
    return optimizers.optimizer(options.pop("name"), **options)


def clip(cfg: Config) -> tuple[str, float] | None:
    """(what, largest norm) or None."""
    optimizer = cfg.optimizer
    return None if optimizer.clip == "none" or optimizer.clip_norm is None else (optimizer.clip, optimizer.clip_norm)
