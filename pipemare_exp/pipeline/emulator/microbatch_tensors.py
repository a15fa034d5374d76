"""The tensors in a microbatch, whatever it is made of: tuples, lists, dicts, dataclasses, numbers, texts."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from torch import Tensor


def kept(value: Any, tensors: list[Tensor]) -> Any:
    """What a graph of `value` would keep: everything but the numbers in its tensors, which are added to `tensors`."""
    if isinstance(value, Tensor):
        tensors.append(value)
        return (value.dtype, tuple(value.size()), tuple(value.stride()), value.requires_grad)
    if isinstance(value, dict):
        return ("dict", *((name, kept(item, tensors)) for name, item in value.items()))
    if isinstance(value, list | tuple):
        return (type(value), *(kept(item, tensors) for item in value))
    if _is_record(value):
        names = [field.name for field in dataclasses.fields(value)]
        return (type(value), *(kept(getattr(value, name), tensors) for name in names))
    if isinstance(value, int | float | str | None):
        return (type(value), value)
    raise TypeError(f"a microbatch holds a {type(value).__name__}, of which is not known what a graph would keep")


def replaced(value: Any, buffers: Iterator[Tensor]) -> Any:
    """`value` with its tensors replaced, in the order of `kept`."""
    if isinstance(value, Tensor):
        return next(buffers)
    if isinstance(value, dict):
        return {name: replaced(item, buffers) for name, item in value.items()}
    if isinstance(value, list | tuple):
        items = [replaced(item, buffers) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if _is_record(value):
        names = [field.name for field in dataclasses.fields(value)]
        return dataclasses.replace(value, **{name: replaced(getattr(value, name), buffers) for name in names})
    return value


def _is_record(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)
