"""The data sets, each in a file of its own that describes it.

Every file here with a function `describe` is a data set; nothing else lists them. One whose description names a task is
what that task trains on: it is the `task=` of the command line. A data set may import the files here that hold none,
`environment` and `errors`; tasks, commands and the configuration ask this module, which imports no library but NumPy.
"""

from __future__ import annotations

import importlib
import pkgutil

from pipemare_exp.data.description import Description
from pipemare_exp.errors import UserError, suggest


def _found() -> dict[str, Description]:
    modules = [importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
    found = [module.describe() for module in modules if hasattr(module, "describe")]
    return {one.name: one for one in sorted(found, key=lambda one: (one.task or "~", bool(one.files), one.name))}


DATASETS: dict[str, Description] = _found()
"""By name: images, then text, then what no task trains on; in each, bundled or generated ones first."""

TASKS = tuple(name for name, description in DATASETS.items() if description.task)
"""The names of the data sets that a task trains on, which are the tasks' names."""


def describe(name: str) -> Description:
    """The description of one data set; UserError with the nearest name for an unknown one."""
    if name not in DATASETS:
        raise UserError(f'unknown data set "{name}"; allowed: {", ".join(DATASETS)}{suggest(name, DATASETS)}')
    return DATASETS[name]
