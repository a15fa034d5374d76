"""The models, each in a file of its own that declares which names it builds and what those take.

A file here with models has one of three literals: `IMAGES`, the name of each and the (channels, height, width) of the
images that it takes; `SENTENCES`, the names of those that take pairs of sentences; `TOKENS`, of those that take one
sequence of tokens. They are read without importing the file: torchvision and fairseq take their time. Nothing else
lists models. A file may import `pipeline.model` and `errors`; tasks and commands import this.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pipemare_exp.errors import UserError, suggest

if TYPE_CHECKING:
    from torch import nn


Shape = tuple[int, int, int]
Kind = Literal["images", "sentences", "tokens"]

LITERALS: tuple[Kind, ...] = ("images", "sentences", "tokens")
"""What a model may take; the literal that declares it is the same word in capitals."""


class Entry(NamedTuple):
    """Where a model is built, what it takes, and the (channels, height, width) of its images; None for the others."""

    module: str
    takes: Kind
    images: Shape | None


def _found() -> dict[str, Entry]:
    models: dict[str, Entry] = {}
    for module in pkgutil.iter_modules(__path__):
        for kind, declared in _literals(Path(__path__[0], f"{module.name}.py")).items():
            shapes = declared if isinstance(declared, dict) else dict.fromkeys(declared)
            models |= {name: Entry(module.name, kind, shape) for name, shape in shapes.items()}
    return models


def _literals(source: Path) -> dict[Kind, Any]:
    """The values of IMAGES, SENTENCES and TOKENS in a file, which is not run."""
    kinds = {kind.upper(): kind for kind in LITERALS}
    return {
        kinds[target.id]: ast.literal_eval(node.value)
        for node in ast.parse(source.read_text(encoding="utf-8")).body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name) and target.id in kinds
    }


MODELS: dict[str, Entry] = _found()


def find(name: str) -> Entry:
    """What is known of a model without importing it. Raises UserError with the nearest name for an unknown one."""
    if name not in MODELS:
        raise UserError(f'unknown model "{name}"; allowed: {", ".join(MODELS)}{suggest(name, MODELS)}')
    return MODELS[name]


def images(name: str) -> Shape | None:
    """The (channels, height, width) of the images that a model takes; None where it takes no images."""
    return find(name).images


def taking(kind: Kind, images: Shape | None = None) -> list[str]:
    """The names of the models that take `kind`, and of those that take images, such images."""
    return [name for name, entry in MODELS.items() if (entry.takes, entry.images) == (kind, images)]


def build(name: str, **options: Any) -> nn.Module:
    """The network that `name` stands for, initialised from torch's default generator, on the default device.

    `options` are those of the `build` in its file; one that is None is left to the model. An image model takes at least
    `num_classes` and `width`, one of sentences `source` and `target` (the dictionaries), one of tokens `vocabulary`.
    Raises UserError for an unknown name or an option that the model does not have.
    """
    made = _module(name).build
    parameters = inspect.signature(made).parameters
    known = [option for option in parameters if option != "name"]
    unknown = [option for option in options if option not in known]
    if unknown:
        raise UserError(f"model.name={name} has no option {', '.join(unknown)}; it has: {', '.join(known)}")
    given = {option: value for option, value in options.items() if value is not None}
    return made(name, **given) if "name" in parameters else made(**given)


def unit_sizes(name: str, **options: Any) -> list[int]:
    """Numbers of weights (elements) of each weight unit of a model, in forward order.

    The model is built and run on torch's meta device, which costs neither memory nor arithmetic. `options` are those of
    `build`; a model of sentences has a `unit_sizes` of its own, with sizes in place of dictionaries.
    """
    entry = find(name)
    if entry.takes == "sentences":
        return _module(name).unit_sizes(**options)
    import torch

    from pipemare_exp.pipeline.model.units import weight_units

    with torch.device("meta"):
        model = build(name, **options).eval()
        example = torch.zeros(1, 1, dtype=torch.int64) if entry.images is None else torch.empty(1, *entry.images)
    with torch.no_grad():
        return [unit.numel for unit in weight_units(model, lambda module: module(example))]


def _module(name: str) -> Any:
    return importlib.import_module(f"{__name__}.{find(name).module}")
