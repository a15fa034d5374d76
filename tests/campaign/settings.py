"""Random settings, drawn from the configuration's own declaration: each field with a value of its kind and range."""

from __future__ import annotations

import dataclasses
import typing
from functools import cache
from random import Random
from typing import Any

from pipemare_exp import methods
from pipemare_exp.experiment.config import folder
from pipemare_exp.experiment.config.schema import Config, method_config
from tests.campaign.words import nonsense, number, word


@cache
def fields() -> tuple[tuple[str, Any, Any], ...]:
    """(name, type, field) of every setting, with the own options of every method."""
    found = {name: (name, hint, one) for name, hint, one in _walk(Config, "")}
    for name in methods.METHODS:
        found |= {one[0]: one for one in _walk(method_config(name), "method.")}
    return tuple(found.values())


def _walk(kind: Any, prefix: str) -> list[tuple[str, Any, Any]]:
    hints = typing.get_type_hints(kind)
    found = []
    for one in dataclasses.fields(kind):
        hint = hints[one.name]
        inner = (
            _walk(hint, f"{prefix}{one.name}.") if dataclasses.is_dataclass(hint) else [(prefix + one.name, hint, one)]
        )
        found += inner
    return found


def override(random: Random, wild: float) -> str:
    """NAME=VALUE; with probability `wild` the value is none that the setting takes."""
    if random.random() < 0.25:
        group = random.choice([name for name in folder.groups() if name not in ("recipe", "task", "data")])
        return f"{group}={random.choice(folder.options(group) or ['x']) if random.random() > wild else word(random)}"
    name, hint, field = random.choice(fields())
    if random.random() < wild:
        value = random.choice((number, word, nonsense))(random)
    else:
        value = _value(random, hint, field)
    return f"{name}={value}"


def _value(random: Random, hint: Any, field: Any) -> str:
    rules = field.metadata
    if rules.get("allowed"):
        return str(random.choice(rules["allowed"]))
    kinds = typing.get_args(hint) if typing.get_origin(hint) is not tuple and typing.get_args(hint) else (hint,)
    kind = random.choice(kinds)
    if kind is type(None):
        return "null"
    if kind is bool:
        return random.choice(("true", "false"))
    if kind in (int, float):
        low, high = rules.get("low", rules.get("above", 0)), rules.get("high", rules.get("below", 40))
        low, high = float(low), float(min(high, random.choice((4, 40, 1e5, 1e12))))
        return (
            str(random.randint(int(low), max(int(low), int(high))))
            if kind is int
            else repr(random.uniform(low, max(low, high)))
        )
    if typing.get_origin(kind) is tuple:
        return f"[{','.join(str(random.randint(0, 12)) for _ in range(random.randint(0, 4)))}]"
    return str(random.choice(rules.get("words", ("x", "a/b", "pipemare", ""))))
