"""From a model to weight units, from units to stages, and the pieces at which a model may be cut.

A weight unit is one module's weight with its bias; a stage is a contiguous group of units in forward order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from pipemare_exp.errors import UserError

State = tuple[Tensor, ...]
UnitRule = Callable[[nn.Module], list[tuple[str, list[str]]]]

_RULES: dict[type[nn.Module], UnitRule] = {}


@dataclass(frozen=True)
class Unit:
    """A weight unit: its name, the qualified names of its parameters, and how many numbers they hold."""

    name: str
    parameters: tuple[str, ...]
    numel: int


@dataclass(frozen=True)
class Piece:
    """A part of a model that runs by itself: from the state before it to the state after it.

    `modules` are those whose weights it owns; `run` takes and returns a tuple of tensors. The first piece of a model
    takes the model's inputs, the last returns a tuple of one tensor, the output. No piece changes its input in place.
    """

    name: str
    modules: tuple[nn.Module, ...]
    run: Callable[[State], State]


def register_units(module_type: type[nn.Module], rule: UnitRule) -> None:
    """Say which units a module has that reads its children's weights in its own forward.

    Hooks on such children never fire (attention passes the weights of its projections to a functional). `rule(module)`
    returns, in the order of use, `(label, names)` for each unit, the names being those of children or of own
    parameters. The rule holds for subclasses too.
    """
    _RULES[module_type] = rule


def _torch_attention(module: nn.Module) -> list[tuple[str, list[str]]]:
    projections = [name for name, _ in module.named_parameters(recurse=False)]
    return [("in_proj", projections), ("out_proj", ["out_proj"])]


register_units(nn.MultiheadAttention, _torch_attention)


def _rule(module: nn.Module) -> UnitRule | None:
    return next((_RULES[kind] for kind in type(module).__mro__ if kind in _RULES), None)


def weight_units(model: nn.Module, run: Callable[[nn.Module], object]) -> list[Unit]:
    """The weight units of `model` in forward order, found by running it once.

    `run(model)` does one forward (without gradients, leaving no trace). A parameter shared by several modules belongs
    to the unit of its first use. Parameters that need no gradient belong to none.

    Raises UserError for a trainable parameter that no called module uses.
    """
    called: dict[str, nn.Module] = {}
    ruled: list[str] = []
    handles = []
    for name, module in model.named_modules():
        if any(name.startswith(parent + ".") for parent in ruled):
            continue  # its parent speaks for it
        if _rule(module) is not None:
            ruled.append(name)
        elif not any(True for _ in module.parameters(recurse=False)):
            continue
        handles.append(module.register_forward_pre_hook(_note(called, name)))
    try:
        run(model)
    finally:
        for handle in handles:
            handle.remove()

    names = {id(parameter): name for name, parameter in model.named_parameters() if parameter.requires_grad}
    units: list[Unit] = []
    for prefix, module in called.items():
        for label, parameters in _members(module):
            fresh = [p for p in parameters if id(p) in names]
            if fresh:
                name = ".".join(part for part in (prefix, label) if part)
                unit_names = tuple(names.pop(id(p)) for p in fresh)
                units.append(Unit(name, unit_names, sum(p.numel() for p in fresh)))
    if names:
        raise UserError(
            f"{len(names)} trainable parameters are used by no module that the forward calls "
            f"({', '.join(list(names.values())[:3])}, ...); a parent that reads its children's weights must be "
            "registered with pipemare_exp.pipeline.model.units.register_units, and unused ones need requires_grad=False"
        )
    return units


def _note(called: dict[str, nn.Module], name: str) -> Callable[..., None]:
    def hook(module: nn.Module, _: object) -> None:  # returns None: a value would replace the module's input
        called.setdefault(name, module)

    return hook


def _members(module: nn.Module) -> list[tuple[str, list[nn.Parameter]]]:
    rule = _rule(module)
    if rule is None:
        return [("", list(module.parameters(recurse=False)))]
    units = []
    for label, members in rule(module):
        parameters: list[nn.Parameter] = []
        for member in members:
            found = getattr(module, member)
            parameters += [found] if isinstance(found, nn.Parameter) else list(found.parameters())
        units.append((label, parameters))
    return units


def choose_boundaries(costs: Sequence[int], stages: int) -> list[int]:
    """The first unit of each of `stages` contiguous groups whose largest summed cost is as small as possible.

    `costs` has one entry per unit, in forward order (the number of weights, or a measured time). Deterministic: among
    the optimal cuts, each group from the front takes as many units as fit. The first boundary is 0.
    """
    if stages < 1:
        raise UserError(f"pipeline.stages={stages}: at least one stage is needed")
    if stages > len(costs):
        raise UserError(
            f"pipeline.stages={stages}: the model has only {len(costs)} weight units, and a stage holds at least one; "
            f"take at most {len(costs)} stages"
        )
    low, high = max(costs), sum(costs)
    while low < high:  # the smallest bottleneck with which greedy filling needs no more than `stages` groups
        middle = (low + high) // 2
        if len(_fill(costs, middle, 1)) <= stages:
            high = middle
        else:
            low = middle + 1
    return _fill(costs, low, stages)


def _fill(costs: Sequence[int], bottleneck: int, at_least: int) -> list[int]:
    """Greedy groups within `bottleneck`, closed early where the units left would not suffice for `at_least` groups."""
    boundaries, load = [0], costs[0]
    for index in range(1, len(costs)):
        short = len(costs) - index <= at_least - len(boundaries)
        if load + costs[index] > bottleneck or short:
            boundaries.append(index)
            load = 0
        load += costs[index]
    return boundaries


def group(units: Sequence[Unit], boundaries: Sequence[int]) -> list[list[Unit]]:
    """The units of each stage. Raises UserError unless `boundaries` starts at 0, rises, and stays below the units."""
    ends = [*boundaries[1:], len(units)]
    if not boundaries or boundaries[0] != 0 or any(a >= b for a, b in zip(boundaries, ends, strict=True)):
        raise UserError(
            f"pipeline.boundaries={list(boundaries)}: must start with 0 and rise to below {len(units)}, the number of "
            "weight units; each entry is the first unit of a stage"
        )
    return [list(units[a:b]) for a, b in zip(boundaries, ends, strict=True)]


def pieces(model: nn.Module) -> list[Piece]:
    """The model's pieces in forward order, whose composition equals the model bit for bit.

    Raises UserError for a model that offers none: recomputation and the runtime cannot cut it.
    """
    offer = getattr(model, "pieces", None)
    if offer is None:
        raise UserError(
            f"{type(model).__name__} cannot be cut: it offers no pieces(); recomputation and the runtime need a model "
            "with one (see docs/adding.md), the emulator without recomputation does not"
        )
    return offer()
