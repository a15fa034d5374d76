"""Asynchronous pipeline-parallel training with PipeMare, and the experiments of its paper.

What it takes to train a model of one's own, and to look at a run that was trained, can be imported from here
(docs/library.md). A name is looked up when it is asked for: importing the package imports no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipemare_exp.errors import UserError as UserError
    from pipemare_exp.experiment.load import load_run as load_run
    from pipemare_exp.methods import build as build_method  # noqa: F401
    from pipemare_exp.optimizers import optimizer as optimizer
    from pipemare_exp.optimizers import rate_schedule as rate_schedule
    from pipemare_exp.pipeline.emulator.emulator import Emulator as Emulator
    from pipemare_exp.pipeline.model.units import choose_boundaries as choose_boundaries
    from pipemare_exp.pipeline.model.units import weight_units as weight_units
    from pipemare_exp.pipeline.shape import Pipeline as Pipeline

__version__ = "0.1.0"

_PLACES = {
    "Emulator": "pipeline.emulator.emulator:Emulator",
    "Pipeline": "pipeline.shape:Pipeline",
    "UserError": "errors:UserError",
    "build_method": "methods:build",
    "choose_boundaries": "pipeline.model.units:choose_boundaries",
    "load_run": "experiment.load:load_run",
    "optimizer": "optimizers:optimizer",
    "rate_schedule": "optimizers:rate_schedule",
    "weight_units": "pipeline.model.units:weight_units",
}

__all__ = [*_PLACES]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = _PLACES[name].partition(":")
    return getattr(import_module(f"{__name__}.{module}"), attribute)


def __dir__() -> list[str]:
    return sorted([*globals(), *_PLACES])
