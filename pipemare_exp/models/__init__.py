"""The models, each in a file of its own that declares which names it builds and what those take.

A file here with models has one of two literals: `IMAGES`, the name of each and the (channels, height, width) of the
images that it takes, or `SENTENCES`, names only. They are read without importing the file: torchvision and fairseq take
their time. Nothing else lists models. A file may import `pipeline.model` and `errors`; tasks and commands import this.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pipemare_exp.errors import UserError, suggest

if TYPE_CHECKING:
    from torch import nn


Shape = tuple[int, int, int]


class Entry(NamedTuple):
    """Where a model is built, and the (channels, height, width) of its images; None for sentences."""

    module: str
    images: Shape | None


def _found() -> dict[str, Entry]:
    models: dict[str, Entry] = {}
    for module in pkgutil.iter_modules(__path__):
        declared = _literals(Path(__path__[0], f"{module.name}.py"))
        models |= {name: Entry(module.name, shape) for name, shape in declared.get("IMAGES", {}).items()}
        models |= {name: Entry(module.name, None) for name in declared.get("SENTENCES", ())}
    return models


def _literals(source: Path) -> dict[str, Any]:
    """The values of IMAGES and SENTENCES in a file, which is not run."""
    return {
        target.id: ast.literal_eval(node.value)
        for node in ast.parse(source.read_text(encoding="utf-8")).body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name) and target.id in ("IMAGES", "SENTENCES")
    }


MODELS: dict[str, Entry] = _found()


def find(name: str) -> Entry:
    """What is known of a model without importing it. Raises UserError with the nearest name for an unknown one."""
    if name not in MODELS:
        raise UserError(f'unknown model "{name}"; allowed: {", ".join(MODELS)}{suggest(name, MODELS)}')
    return MODELS[name]


def images(name: str) -> Shape | None:
    """The (channels, height, width) of the images that a model takes; None where it takes sentences."""
    return find(name).images


def taking(images: Shape | None) -> list[str]:
    """The names of the models that take such images, or (None) sentences."""
    return [name for name, entry in MODELS.items() if entry.images == images]


def build(name: str, **options: Any) -> nn.Module:
    """The network that `name` stands for, initialised from torch's default generator, on the default device.

    `options` are those of the `build` in its file; one that is None is left to the model. An image model takes at least
    `num_classes` and `width`, a Transformer needs `source` and `target` (the dictionaries). Raises UserError for an
    unknown name or an option that the model does not have.
    """
    made = _module(name).build
    known = [option for option in inspect.signature(made).parameters if option != "name"]
    unknown = [option for option in options if option not in known]
    if unknown:
        raise UserError(f"model.name={name} has no option {', '.join(unknown)}; it has: {', '.join(known)}")
    given = {option: value for option, value in options.items() if value is not None}
    return made(**given) if images(name) is None else made(name, **given)


def unit_sizes(name: str, **options: Any) -> list[int]:
    """Numbers of weights (elements) of each weight unit of a model, in forward order.

    An image model is built and run on torch's meta device, which costs neither memory nor arithmetic. `options` are
    those of `build`; a model of sentences has a `unit_sizes` of its own, with sizes in place of dictionaries.
    """
    shape = images(name)
    if shape is None:
        return _module(name).unit_sizes(**options)
    import torch

    from pipemare_exp.pipeline.model.units import weight_units

    with torch.device("meta"):
        model = build(name, **options).eval()
        image = torch.empty(1, *shape)
    with torch.no_grad():
        return [unit.numel for unit in weight_units(model, lambda module: module(image))]


def _module(name: str) -> Any:
    return importlib.import_module(f"{__name__}.{find(name).module}")
