"""Which model a name stands for, and the sizes of its weight units."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from pipemare_exp.errors import UserError, suggest

RESNETS = (
    "digits_resnet",
    "resnet20",
    "resnet32",
    "resnet56",
    "resnet110",
    "resnet18",
    "resnet50",
    "resnet152",
)
TRANSFORMERS = ("transformer", "transformer_iwslt_de_en")
NAMES = RESNETS + TRANSFORMERS


def build(name: str, num_classes: int = 10, width: int | None = None, **options: Any) -> nn.Module:
    """The network that `name` stands for, initialised from torch's default generator, on the default device.

    A ResNet has `num_classes` and `width` (channels of the first group); a Transformer is built from the
    `options` of `models.transformer.build`, of which `source` and `target` (the dictionaries) are required.
    Raises UserError for an unknown name or an option that the model does not have.
    """
    check_name(name)
    if name in TRANSFORMERS:
        from pipemare_exp.models import transformer  # fairseq costs 1.5 s: only those who ask pay

        return transformer.build(**options | ({} if width is None else {"width": width}))
    if options:
        unknown = ", ".join(sorted(options))
        raise UserError(f"model.name={name} has no option {unknown}; it has: num_classes, width")
    from pipemare_exp.models.resnet import SPECS, ResNet

    return ResNet(SPECS[name], num_classes=num_classes, width=width)


def unit_sizes(name: str, **options: Any) -> list[int]:
    """Numbers of weights (elements) of each weight unit of a model, in forward order.

    A ResNet is built and run on torch's meta device, which costs neither memory nor arithmetic. `options` are
    those of `build`, or of `models.transformer.unit_sizes` (which stands in for dictionaries by their sizes).
    """
    check_name(name)
    if name in TRANSFORMERS:
        from pipemare_exp.models import transformer

        return transformer.unit_sizes(**options)
    from pipemare_exp.models.resnet import SPECS
    from pipemare_exp.pipeline.model.units import weight_units

    with torch.device("meta"):
        model = build(name, **options).eval()
        spec = SPECS[name]
        image = torch.empty(1, spec.channels, spec.size, spec.size)
    with torch.no_grad():
        return [unit.numel for unit in weight_units(model, lambda module: module(image))]


def check_name(name: str) -> None:
    """Raise UserError, with the nearest name, unless `name` is a model's."""
    if name not in NAMES:
        raise UserError(f'unknown model "{name}"; allowed: {", ".join(NAMES)}{suggest(name, NAMES)}')
