"""What can stand at the cursor of a `pipemare` command line? The answers to the Tab key, by argcomplete.

The shell starts `pipemare` with the line in its environment (see `pipemare completion`). Nothing here may import
torch, Hydra or matplotlib: an answer has to come at once.
"""

from __future__ import annotations

import argparse
import dataclasses
import typing
from collections.abc import Callable, Iterable
from typing import Any

from argcomplete import CompletionFinder
from argcomplete.completers import FilesCompleter

from pipemare_exp.experiment.config import folder
from pipemare_exp.experiment.config.schema import Config
from pipemare_exp.experiment.runs.folder import find_runs, runs_root

INTERNAL = ("recipe",)
"""Groups of configuration files that are chosen by others."""


def answer(parser: argparse.ArgumentParser) -> None:
    """Write what fits the line to the shell, and end the process."""
    for each in _parsers(parser):
        for action in each._actions:
            complete = BY_NAME.get(action.dest)
            if complete is not None and action.choices is None:
                action.completer = _of(complete)  # type: ignore[attr-defined]
    _Finder()(parser, always_complete_options=False)


class _Finder(CompletionFinder):
    """argcomplete's, but for words after an option: argparse gives a list of positionals one place only, and then
    reads the rest of the line again (`parse_intermixed_args`), which argcomplete does not know."""

    def collect_completions(self, active_parsers: Any, parsed_args: Any, cword_prefix: str) -> list[str]:
        found = super().collect_completions(active_parsers, parsed_args, cword_prefix)
        if not found and not cword_prefix.startswith("-"):
            for action in active_parsers[-1]._get_positional_actions():
                if action.nargs == "*" and hasattr(action, "completer"):
                    found = action.completer(cword_prefix, parsed_args=parsed_args)
        return found


def _of(complete: Callable[[str, argparse.Namespace], Iterable[str]]) -> Callable[..., list[str]]:
    def completer(prefix: str, parsed_args: argparse.Namespace, **_: Any) -> list[str]:
        return [one for one in complete(prefix, parsed_args) if one.startswith(prefix)]

    return completer


def _parsers(parser: argparse.ArgumentParser) -> Iterable[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                yield from _parsers(each)


def settings(prefix: str, args: argparse.Namespace) -> Iterable[str]:
    """`group=`, `setting=`, and what may follow the equals sign."""
    name, equals, _ = prefix.partition("=")
    if not equals:
        groups = [group for group in folder.groups() if group not in INTERNAL]
        return [f"{one}=" for one in dict.fromkeys([*groups, *fields(Config)])]
    return [f"{name}={value}" for value in values(name)]


def values(name: str) -> list[str]:
    """The values that a group or a setting may have, where they can be listed."""
    if name in folder.groups():
        return folder.options(name)
    return fields(Config).get(name, [])


def fields(kind: type, path: str = "") -> dict[str, list[str]]:
    """The dotted names of all settings below a dataclass type, each with the values that can be listed."""
    found: dict[str, list[str]] = {}
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        where, hint = f"{path}{field.name}", hints[field.name]
        if dataclasses.is_dataclass(hint):
            found |= fields(typing.cast(type, hint), f"{where}.")
            continue
        kinds = typing.get_args(hint) or (hint,)
        listed = [str(one) for one in (*field.metadata.get("allowed", ()), *field.metadata.get("words", ()))]
        listed += ["true", "false"] if bool in kinds else []
        found[where] = [*listed, "null"] if type(None) in kinds else listed
    return found


def words_of_a_sweep(prefix: str, args: argparse.Namespace) -> Iterable[str]:
    """Studies, the sweep's own words, and settings of all cells."""
    name, equals, _ = prefix.partition("=")
    if name == "launcher":
        return [f"{name}={value}" for value in LAUNCHERS]
    if equals:
        return settings(prefix, args)
    return [*studies(), "seeds=", "jobs=", "launcher=", *settings(prefix, args)]


LAUNCHERS = ("basic", "joblib", "submitit_local", "submitit_slurm")


def studies() -> list[str]:
    """Every study, and every STUDY_TASK."""
    from pipemare_exp.experiment.sweep import study_file

    loaded = [study_file.load(name) for name in study_file.names()]
    tasks = {one.name: sorted({task for places in one.places.values() for task in places}) for one in loaded}
    return [name for one, its in tasks.items() for name in (one, *(f"{one}_{task}" for task in its))]


def figures(prefix: str, args: argparse.Namespace) -> Iterable[str]:
    """The figures and tables."""
    from paper_figures import registry

    return [entry.name for entry in registry.ENTRIES]


def runs(prefix: str, args: argparse.Namespace) -> Iterable[str]:
    """Names of runs; where somebody writes a path, files."""
    found = [run.path.name for run in find_runs(runs_root(getattr(args, "runs", None)))]
    fitting = [name for name in found if name.startswith(prefix)]
    return fitting or FilesCompleter()(prefix)


BY_NAME: dict[str, Callable[[str, argparse.Namespace], Iterable[str]]] = {
    "overrides": settings,
    "set": settings,
    "words": words_of_a_sweep,
    "names": figures,
    "run": runs,
    "task": lambda prefix, args: values("task"),
    "scale": lambda prefix, args: values("scale"),
}
"""What completes an argument, by the name under which every command has it."""
