"""The training methods, each in a file of its own that declares all that others ask about it.

Every class with a `name` in a file of this folder is a method; nothing else lists them. A method may import
`pipeline`, `settings`, `seeding` and `errors`. Configuration, assembly, plan, comparisons and figures ask the functions
below and name no method. None of this imports torch.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

from pipemare_exp.errors import UserError, suggest
from pipemare_exp.pipeline.method import Method
from pipemare_exp.pipeline.schedule.costs import Costs


def _found() -> dict[str, type[Method]]:
    modules = [importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
    classes = [
        kind
        for module in modules
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, Method) and kind.__module__ == module.__name__ and kind.name
    ]
    return {kind.name: kind for kind in sorted(classes, key=lambda kind: (kind.order, kind.name))}


METHODS: dict[str, type[Method]] = _found()
"""By name, in the order of tables."""


def find(name: str) -> type[Method]:
    """The method of this name. Raises UserError with the nearest one if there is none."""
    if name not in METHODS:
        raise UserError(f"method.name={name}: known are {', '.join(METHODS)}{suggest(name, METHODS)}")
    return METHODS[name]


def build(name: str, **options: Any) -> Method:
    """The method `name` with its options (see `Method`). Raises UserError for an unknown name or a refused option."""
    return find(name)(**options)


def of_label(label: str) -> type[Method] | None:
    """The method whose runs have this label; None for a label of a method that is not here."""
    return next((kind for kind in METHODS.values() if kind.has_label(label)), None)


def synchronous(label: str) -> bool:
    """Whether runs of this label are synchronous, and so a reference for the others."""
    kind = of_label(label)
    return kind is not None and kind.synchronous


def place(label: str) -> tuple[int, str, int, str]:
    """Sorts labels as tables show them: by the method's place, then by how much is switched on."""
    kind = of_label(label)
    order, name = (kind.order, kind.name) if kind else (Method.order, label)
    return order, name, len(label.split("+")), label


def title(label: str) -> str:
    """What a table calls runs of this label: the method's title and what is switched on."""
    kind = of_label(label)
    return ", ".join([kind.title, *map(str.upper, label.split("+")[1:])]) if kind else label


def file_of(label: str) -> str:
    """The name of a label in configs/method and in the names of runs, such as t1_t2 for t1+t2."""
    return (of_label(label) or Method).file_of(label)


def costs() -> dict[str, Costs]:
    """What methods cost by the model, under the names that `pipemare plan` gives, in the order of tables."""
    return {name: declared for kind in METHODS.values() for name, declared in kind.costs.items()}


def costs_of(label: str) -> Costs | None:
    """What runs of this label cost by the model; None where no pipeline executes the method."""
    kind = of_label(label)
    return kind.costs_of(label) if kind else None
