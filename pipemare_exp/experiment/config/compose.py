"""Hydra's part: from overrides such as `task=digits method=pipemare seed=3` to one plain tree.

Hydra chooses files and merges them; names, types and ranges are checked by `validate.py`. Hydra's own errors
come out as one or two lines with the nearest valid name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.errors import HydraException, MissingConfigException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pipemare_exp.errors import UserError, suggest
from pipemare_exp.experiment.config.folder import config_folder, groups, options, scales


def compose(overrides: Sequence[str]) -> dict[str, Any]:
    """The tree of plain values that files and `overrides` give. Raises UserError for a wrong override."""
    prepared = for_hydra(overrides)
    with session():
        try:
            tree = OmegaConf.to_container(hydra_compose("config", overrides=prepared), resolve=True)
        except MissingConfigException as error:
            raise UserError(_missing(error)) from error
        except (HydraException, OmegaConfBaseException, ValueError) as error:
            raise UserError(f"the overrides do not fit together: {_first_line(error)}") from error
    assert isinstance(tree, dict)
    return tree  # type: ignore[return-value]


def quoted(text: str) -> str:
    """`text`, whatever is in it, as a value in the grammar of overrides: quoted, and nothing in it is looked up."""
    plain = re.sub(r"(\\*)\$\{", r"\1\1\\${", text)  # OmegaConf's escape of an interpolation
    return QuotedString(plain, Quote.single).with_quotes()


def for_hydra(overrides: Sequence[str]) -> list[str]:
    """The overrides in the form that Hydra gets. Raises UserError for one that is none."""
    return [_prepare(text) for text in overrides]


def _prepare(text: str) -> str:
    """An override as Hydra gets it: values are set whether or not a file names them, and checked later."""
    try:
        override = OverridesParser.create().parse_override(text)
        value = None if override.is_delete() else override.value()
    except (HydraException, ValueError) as error:
        name, equals, value = text.partition("=")
        remedy = "write name=value, for example seed=3 or task=digits"
        if equals and re.fullmatch(r"[+~]*[\w./@]+", name) and "'" not in value:
            signs = "= ? & # , : [ ] { }"
            remedy = f"a value with any of {signs} is quoted twice, for Hydra and for the shell: \"{name}='{value}'\""
        raise UserError(f'"{text}" is not an override ({_first_line(error)}); {remedy}') from error
    key = override.key_or_group
    if override.is_sweep_override():
        raise UserError(f'"{text}" asks for several runs; give one value, several runs are a sweep')
    if key == "hydra" or key.startswith("hydra.") or key.startswith("hydra/"):
        raise UserError(f'"{text}": settings of Hydra itself have no effect here; leave it out')
    if key == "experiment" and isinstance(value, str) and value not in options(key):
        raise UserError(f"{text}: there is no configs/experiment/{value}.yaml{_cell(value)}")
    if key in groups():
        if override.is_delete() or override.is_add() or not isinstance(value, str):
            raise UserError(f'"{text}": {key} is a choice of one file; allowed: {", ".join(options(key))}')
        if value not in options(key):
            raise UserError(_unknown_choice(key, value))
        return text
    if override.is_delete():
        raise UserError(f'"{text}": nothing can be deleted; set {key}=null where a setting allows it')
    return f"++{text.lstrip('+')}"


def _unknown_choice(group: str, value: str) -> str:
    allowed = options(group)
    return f"{group}={value}: there is no such {group}; allowed: {', '.join(allowed)}{suggest(value, allowed)}"


def _cell(value: str) -> str:
    """What to write for TASK/METHOD, where a task and a method are meant."""
    task, slash, method = value.partition("/")
    return f"; write task={task} method={method}" if slash else "; settings are chosen by task= and method="


def _missing(error: MissingConfigException) -> str:
    name = error.missing_cfg_file or ""
    group, _, choice = name.partition("/")
    if group == "recipe":
        task, _, scale = choice.rpartition("_")
        return f"task {task} has no scale={scale}; it has: {', '.join(scales(task)) or 'none yet'}"
    return _unknown_choice(group, choice) if choice and group in groups() else _first_line(error)


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and "See https" not in line]
    return ": ".join(lines[:2]) if lines else type(error).__name__


@contextmanager
def session() -> Iterator[None]:
    """Hydra with our folder; inside a Hydra job (a multirun) the outer one is put back afterwards."""
    state = GlobalHydra.instance()
    outer, state.hydra = state.hydra, None
    try:
        with initialize_config_dir(os.fspath(config_folder()), job_name="pipemare", version_base="1.3"):
            yield
    finally:
        GlobalHydra.instance().hydra = outer
