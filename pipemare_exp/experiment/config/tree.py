"""From a plain tree (YAML, command line) to the frozen `Config`: names, types and ranges, one by one."""

from __future__ import annotations

import dataclasses
import difflib
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from pipemare_exp import methods, settings
from pipemare_exp.errors import UserError
from pipemare_exp.experiment.config.schema import (
    Config,
    MethodConfig,
    method_config,
)

T = TypeVar("T")

OTHER_WORDS = {
    "lr": "optimizer.rate",
    "learning_rate": "optimizer.rate",
    "wd": "optimizer.weight_decay",
    "beta1": "optimizer.betas",
    "beta2": "optimizer.betas",
    "batch": "data.batch_size",
    "bs": "data.batch_size",
    "clip_grad_norm": "optimizer.clip_norm",
    "workers": "engine.ranks",
    "nproc": "engine.ranks",
    "steps": "max_steps",
    "amp": "precision",
}
"""What people type who know other programs, and the setting that they mean."""


def from_tree(tree: Mapping[str, Any], kind: type[T], path: str = "", also: tuple[str, ...] = ()) -> T:
    """`tree` as a dataclass of type `kind`; `path` is where it lies, `also` further names that a user may
    have meant.

    Raises UserError with the offending name or value, the allowed ones, and the nearest valid name.
    """
    if kind is MethodConfig:
        kind = _method_config(tree, path)
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    hints = typing.get_type_hints(kind)
    for key in tree:
        if key not in fields:
            raise UserError(_unknown(str(key), path, (*fields, *also)))
    values = {key: _value(tree[key], hints[key], fields[key], f"{path}.{key}".lstrip(".")) for key in tree}
    return kind(**values)


def _method_config(tree: Mapping[str, Any], path: str) -> Any:
    """The `MethodConfig` of the method that `tree` names. Raises UserError for another method's option."""
    name = str(tree.get("name", MethodConfig.name))
    kind = method_config(name)
    for key in tree:
        owners = [other for other, method in methods.METHODS.items() if key in settings.names(method.Options)]
        if owners and key not in settings.names(kind):
            raise UserError(
                f"{path}.{key}={tree[key]} with {path}.name={name}: it is an option of {' and '.join(owners)} only; "
                f"leave it out or take method={owners[0]}"
            )
    return kind


def _unknown(key: str, path: str, known: tuple[str, ...]) -> str:
    """The message for a name that is none: the nearest one here, or the same name elsewhere in the tree."""
    prefix = f"{path}." if path else ""
    elsewhere = [name for name in setting_names(Config) if name.split(".")[-1] == key]
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    meant = OTHER_WORDS.get(key) or (prefix + near[0] if near else next(iter(elsewhere), None))
    hint = f'did you mean "{meant}"?' if meant else f"there are: {', '.join(dict.fromkeys(known))}"
    return f'unknown setting "{prefix}{key}"; {hint}'


def setting_names(kind: type, path: str = "") -> list[str]:
    """The dotted names of all settings below a dataclass type."""
    hints = typing.get_type_hints(kind)
    names = []
    for field in dataclasses.fields(kind):
        where, hint = f"{path}{field.name}", hints[field.name]
        names += setting_names(typing.cast(type, hint), f"{where}.") if dataclasses.is_dataclass(hint) else [where]
    if kind is MethodConfig:
        own = [name for method in methods.METHODS.values() for name in settings.names(method.Options)]
        names += [f"{path}{name}" for name in dict.fromkeys(own)]
    return names


def _value(value: Any, hint: Any, field: dataclasses.Field, where: str) -> Any:
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, Mapping):
            inner = ", ".join(f"{where}.{f.name}" for f in dataclasses.fields(hint))
            raise UserError(f"{where}={value} is a group of settings, not a value; set one of {inner}")
        return from_tree(value, typing.cast(type, hint), where)
    return settings.checked(value, hint, field, where)
