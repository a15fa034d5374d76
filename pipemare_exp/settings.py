"""Fields of settings: how a dataclass says what a value may be, and how a value is checked against that.

A field's type is what it accepts (`| None`: may be left unset); `bounded` and `choice` add its range. The configuration
is made of such dataclasses, and so are the options of a method.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from pipemare_exp.errors import UserError, suggest

T = TypeVar("T")

LARGEST = 2**31 - 1
"""The largest number that a setting or an option may be where it has no bound of its own."""
MOST_PARTS = 10_000
"""The largest number of things that are laid out one by one, such as stages, microbatches and seeds."""

WIDEST = 1000
"""The widest beam of a search: memory grows with it."""


def bounded(default: Any = None, **bounds: float) -> Any:
    """A number with any of `low`, `high` (inclusive), `above`, `below` (exclusive)."""
    return dataclasses.field(default=default, metadata=bounds)


def choice(default: Any, *allowed: Any) -> Any:
    """One of the values `allowed`."""
    return dataclasses.field(default=default, metadata={"allowed": allowed})


def names(kind: type) -> tuple[str, ...]:
    """The names of a dataclass's fields."""
    return tuple(field.name for field in dataclasses.fields(kind))


def filled(kind: type[T], values: Mapping[str, Any], where: str) -> T:
    """The flat dataclass `kind` of `values`, each checked. Raises UserError; `where` is what messages put before a
    name, such as `method.`."""
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    for key in values:
        if key not in fields:
            raise UserError(f'unknown option "{where}{key}"; there are: {", ".join(fields) or "none"}')
    hints = typing.get_type_hints(kind)
    return kind(**{key: checked(value, hints[key], fields[key], f"{where}{key}") for key, value in values.items()})


def checked(value: Any, hint: Any, field: dataclasses.Field, where: str) -> Any:
    """`value` as the type `hint` within the range of `field`. Raises UserError, which calls the setting `where`."""
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if value is None:
        if type(None) in kinds:
            return None
        raise UserError(f"{where} must not be null; it takes {_describe(kinds, field)}")
    for kind in kinds:
        converted = _converted(value, kind)
        if converted is not None and isinstance(converted, str) and "words" in field.metadata:
            if converted not in field.metadata["words"]:
                break
            return converted
        if converted is not None:
            _check_range(converted, field, where)
            return converted
    raise UserError(f"{where}={value}: it takes {_describe(kinds, field)}")


def _converted(value: Any, kind: Any) -> Any:
    """`value` as `kind`, or None where it is not of that kind. Whole numbers will do for a float."""
    if kind is bool or kind is str:
        return value if type(value) is kind else None
    if kind is int:
        return value if type(value) is int else None
    if kind is float:
        return float(value) if type(value) in (int, float) and math.isfinite(value) else None
    if typing.get_origin(kind) is tuple and isinstance(value, list | tuple):
        inner = typing.get_args(kind)
        wanted = [inner[0]] * len(value) if inner[-1] is Ellipsis else list(inner)
        items = [_converted(item, part) for item, part in zip(value, wanted, strict=False)]
        return tuple(items) if len(items) == len(value) == len(wanted) and None not in items else None
    return None


def _check_range(value: Any, field: dataclasses.Field, where: str) -> None:
    rules = field.metadata
    allowed = rules.get("allowed")
    if allowed and value not in allowed:
        raise UserError(f"{where}={value}; allowed: {', '.join(allowed)}{suggest(str(value), allowed)}")
    numbers = [item for item in (value if isinstance(value, tuple) else (value,)) if isinstance(item, int | float)]
    if any(abs(item) > LARGEST for item in numbers):
        raise UserError(f"{where}={str(value)[:40]}: no number may be beyond {LARGEST}{_beside(field)}")
    fits = (
        value >= rules.get("low", value)
        and value <= rules.get("high", value)
        and ("above" not in rules or value > rules["above"])
        and ("below" not in rules or value < rules["below"])
    )
    if not fits:
        raise UserError(f"{where}={value}: it must be {_range(field)}")


def _beside(field: dataclasses.Field) -> str:
    return f"; this one must be {_range(field)}" if _range(field) else ""


def _range(field: dataclasses.Field) -> str:
    words = {"low": "at least {}", "high": "at most {}", "above": "above {}", "below": "below {}"}
    return " and ".join(words[key].format(bound) for key, bound in field.metadata.items() if key in words)


def _describe(kinds: tuple[Any, ...], field: dataclasses.Field) -> str:
    if field.metadata.get("allowed"):
        return " | ".join(field.metadata["allowed"])
    names = {
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        str: " or ".join(field.metadata.get("words", ("a text",))),
        type(None): "null",
    }
    text = " or ".join(names.get(kind, "a list of numbers such as [0.5, 0.9]") for kind in kinds)
    return f"{text}, {_range(field)}" if _range(field) else text
