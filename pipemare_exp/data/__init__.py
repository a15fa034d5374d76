"""The data sets, each in a file of its own that describes it.

Every file here with a function `describe` is a data set; nothing else lists them. One whose description names a task is
what that task trains on: it is the `task=` of the command line. A data set may import the files here that hold none,
`environment` and `errors`; tasks, commands and the configuration ask this module, which imports no library but NumPy.
"""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path
from types import ModuleType
from typing import Any

from pipemare_exp.data.cache import data_root
from pipemare_exp.data.description import Description
from pipemare_exp.data.digests import Input, of_source
from pipemare_exp.errors import UserError, suggest


def _found() -> dict[str, tuple[Description, ModuleType]]:
    modules = [importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
    found = [(module.describe(), module) for module in modules if hasattr(module, "describe")]
    found.sort(key=lambda one: (one[0].task or "~", bool(one[0].files), one[0].name))
    return {described.name: (described, module) for described, module in found}


_FOUND = _found()

DATASETS: dict[str, Description] = {name: described for name, (described, _) in _FOUND.items()}
"""By name: images, then text, then what no task trains on; in each, bundled or generated ones first."""

TASKS = tuple(name for name, description in DATASETS.items() if description.task)
"""The names of the data sets that a task trains on, which are the tasks' names."""


def describe(name: str) -> Description:
    """The description of one data set; UserError with the nearest name for an unknown one."""
    if name not in DATASETS:
        raise UserError(f'unknown data set "{name}"; allowed: {", ".join(DATASETS)}{suggest(name, DATASETS)}')
    return DATASETS[name]


def inputs(cfg: Any) -> dict[str, Input]:
    """What a run of the configuration `cfg` learns from and is scored on: the identity of each of its data, by name.

    The one place that says which data a run reads. Reads cfg.task.name, cfg.data and cfg.model; may make files that are
    derived from others. Of a data set that declares neither files nor identities it is the source file.
    """
    described = describe(cfg.task.name)
    source = Path(str(_FOUND[described.name][1].__file__))
    return described.inputs(data_root(cfg.data.root), cfg) or of_source(source)
