"""How is a study read from its file in sweeps/, and what is said of a file that is wrong?

A study file holds:

    about: one line
    figures: [names in paper_figures that it feeds]
    fixed: {override: value}                of every cell
    grids:                                  the union of these products
      - method: [names in configs/method]
        some.override: [values]             null: leave what the recipe has
    exclude: [{method: x, some.override: [values]}]     points that match all keys of an entry are left out
    scales:
      demo:
        digits: {seeds: 3, fixed: {...}, values: {some.override: [values]}}     or seeds: [0, 7]

`scales` says where the study runs; a task's `fixed` are added to the study's, its `values` replace those of an axis.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import yaml

from pipemare_exp.data import TASKS
from pipemare_exp.errors import UserError, suggest
from pipemare_exp.experiment.config.schema import SCALES
from pipemare_exp.experiment.sweep.study import Place, Study
from pipemare_exp.paths import travelling


def folder() -> Path:
    """sweeps/ beside the package in a checkout, or the copy inside an installed wheel."""
    return travelling("sweeps")


def names(where: Path | None = None) -> list[str]:
    """The studies there are."""
    return sorted(path.stem for path in (where or folder()).glob("*.yaml"))


def load(name: str, where: Path | None = None) -> Study:
    """The study of that name. UserError for an unknown name, or a file that is not as it should be."""
    path = (where or folder()) / f"{name}.yaml"
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        known = names(where)
        raise UserError(f'no study "{name}"; there are: {", ".join(known)}{suggest(name, known)}') from None
    except yaml.YAMLError as error:
        raise UserError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    return _Reader(path).study(name, tree)


def find(name: str, where: Path | None = None) -> tuple[Study, str | None]:
    """The study that `name` is, and the task that it ends with: ablation_digits is ablation on digits alone."""
    known = names(where)
    if name in known:
        return load(name, where), None
    study, _, task = name.rpartition("_")
    if study in known and task in TASKS:
        return load(study, where), task
    if study in known:
        raise UserError(f'no task "{task}" for study {study}; tasks: {", ".join(TASKS)}{suggest(task, TASKS)}')
    both = [*known, *(f"{study}_{task}" for study in known for task in TASKS)]
    raise UserError(f'no study "{name}"; there are: {", ".join(known)} (each also as STUDY_TASK){suggest(name, both)}')


class _Reader:
    """Turns the tree of a study file into a Study; every error names the file and the key that is wrong."""

    def __init__(self, path: Path):
        self.path = path

    def study(self, name: str, tree: Any) -> Study:
        known = ("about", "figures", "fixed", "grids", "exclude", "scales")
        self.keys(tree, known, "the file", needed=("about", "grids", "scales"))
        grids = self.listed(tree["grids"], "grids")
        for number, grid in enumerate(grids):
            self.mapping(grid, f"grids[{number}]")
            if "method" not in grid:
                self.wrong(f"grids[{number}] has no method")
            self.axes(grid, f"grids[{number}]")
        axes = {key for grid in grids for key in grid}
        rules = tree.get("exclude") or []
        for number, rule in enumerate(rules):
            self.keys(rule, axes, f"exclude[{number}]")
        self.keys(tree["scales"], SCALES, "scales")
        places = {scale: self.places(scale, tasks, axes) for scale, tasks in tree["scales"].items()}
        return Study(
            name=name,
            about=str(tree["about"]),
            figures=tuple(tree.get("figures") or ()),
            fixed=self.mapping(tree.get("fixed") or {}, "fixed"),
            grids=tuple(grids),
            exclude=tuple(rules),
            places=places,
        )

    def places(self, scale: str, tasks: Any, axes: set[str]) -> dict[str, Place]:
        self.keys(tasks, TASKS, f"scales.{scale}")
        made = {}
        for task, place in tasks.items():
            where = f"scales.{scale}.{task}"
            self.keys(place, ("seeds", "fixed", "values"), where, needed=("seeds",))
            values = self.mapping(place.get("values") or {}, f"{where}.values")
            self.keys(values, axes, f"{where}.values")
            self.axes(values, f"{where}.values")
            fixed = self.mapping(place.get("fixed") or {}, f"{where}.fixed")
            made[task] = Place(self.seeds(place["seeds"], where), fixed, values)
        return made

    def seeds(self, value: Any, where: str) -> tuple[int, ...]:
        if type(value) is int and value > 0:
            return tuple(range(value))
        if isinstance(value, list) and value and all(type(seed) is int and seed >= 0 for seed in value):
            return tuple(value)
        self.wrong(f"{where}.seeds={value}: a number of seeds or a list of them")

    def axes(self, tree: Mapping[str, Any], where: str) -> None:
        for key, values in tree.items():
            self.listed(values, f"{where}.{key}")

    def listed(self, value: Any, where: str) -> list[Any]:
        if not isinstance(value, list) or not value:
            self.wrong(f"{where} is {value}, it must be a list of at least one")
        return value

    def mapping(self, value: Any, where: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            self.wrong(f"{where} is {value}, it must be names with values")
        return value

    def keys(self, tree: Any, allowed: Any, where: str, needed: Sequence[str] = ()) -> None:
        for key in self.mapping(tree, where):
            if key not in allowed:
                self.wrong(f'{where} has "{key}"; allowed: {", ".join(sorted(allowed))}{suggest(str(key), allowed)}')
        for key in needed:
            if key not in tree:
                self.wrong(f"{where} has no {key}")

    def wrong(self, message: str) -> NoReturn:
        raise UserError(f"{self.path}: {message}")
