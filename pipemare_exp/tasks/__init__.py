"""What is trained and how it is scored: a task for each kind of data set.

A data set names its task, a module of this folder with a function `build`; adding one of a known kind changes nothing
here. Tasks import `models`, `data`, `seeding` and `pipeline`; `experiment`, commands and benchmarks import them.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch

from pipemare_exp import data
from pipemare_exp.errors import UserError, suggest
from pipemare_exp.tasks.base import Task


def build(cfg: Any, device: str | torch.device = "cpu", memory_format: str = "contiguous") -> Task:
    """The task that `cfg.task.name` names, with its data on `device`.

    Reads cfg.task.name, cfg.seed, cfg.data, cfg.model and cfg.pipeline.microbatches; `memory_format` is
    "contiguous" or "channels_last" (images only). A task's module is imported when it is asked for, so that
    images never pay for the import of fairseq.
    """
    name = cfg.task.name
    if name not in data.TASKS:
        raise UserError(f'task.name="{name}" is unknown; allowed: {", ".join(data.TASKS)}{suggest(name, data.TASKS)}')
    module = import_module(f"{__name__}.{data.describe(name).task}")
    return module.build(cfg, torch.device(device), memory_format)
