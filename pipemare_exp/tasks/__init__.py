"""Which task a name stands for."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch

from pipemare_exp.errors import UserError, suggest
from pipemare_exp.tasks.base import Task

NAMES = {
    "digits": "pipemare_exp.tasks.image_classification:build",
    "cifar10": "pipemare_exp.tasks.image_classification:build",
    "numerals": "pipemare_exp.tasks.translation:build",
    "iwslt14": "pipemare_exp.tasks.translation:build",
    "multi30k": "pipemare_exp.tasks.translation:build",
}
"""Task name -> "module:function"; the function takes (cfg, device, memory_format) and returns a Task."""


def build(cfg: Any, device: str | torch.device = "cpu", memory_format: str = "contiguous") -> Task:
    """The task that `cfg.task.name` names, with its data on `device`.

    Reads cfg.task.name, cfg.seed, cfg.data, cfg.model and cfg.pipeline.microbatches; `memory_format` is
    "contiguous" or "channels_last" (images only). A task's module is imported when it is asked for, so that
    images never pay for the import of fairseq.
    """
    name = cfg.task.name
    if name not in NAMES:
        raise UserError(f'task.name="{name}" is unknown; allowed: {", ".join(NAMES)}{suggest(name, NAMES)}')
    module, function = NAMES[name].split(":")
    return getattr(import_module(module), function)(cfg, torch.device(device), memory_format)
