"""What is a study, and which trainings does it ask for?

A study is a union of grids, with seeds and more settings for each task and scale. `expand` is a pure function of it;
`study_file.py` reads studies from sweeps/.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipemare_exp.errors import UserError, suggest
from pipemare_exp.experiment.config.compose import quoted
from pipemare_exp.experiment.config.schema import SCALES

Grid = Mapping[str, Sequence[Any]]


@dataclass(frozen=True)
class Place:
    """How a study runs on one task at one scale."""

    seeds: tuple[int, ...]
    fixed: Mapping[str, Any] = field(default_factory=dict)
    values: Mapping[str, Sequence[Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Study:
    """A study file. `places[scale][task]`."""

    name: str
    about: str
    figures: tuple[str, ...]
    fixed: Mapping[str, Any]
    grids: tuple[Grid, ...]
    exclude: tuple[Mapping[str, Any], ...]
    places: Mapping[str, Mapping[str, Place]]

    def scales(self, task: str | None = None) -> list[str]:
        """The scales at which the study runs (on `task`), smallest first."""
        return [scale for scale in SCALES if self.places.get(scale) and task in (None, *self.places[scale])]


@dataclass(frozen=True)
class Cell:
    """One training: `overrides` are what `pipemare train` would get; `point`: its place in the study."""

    task: str
    scale: str
    method: str
    seed: int
    point: tuple[tuple[str, Any], ...]
    overrides: tuple[str, ...]

    @property
    def title(self) -> str:
        """Task, method, place and seed in a few words: `digits hogwild delay_scale=0.5, seed 0`."""
        words = [f"{key.rsplit('.', 1)[-1]}={text(value)}" for key, value in self.point if value is not None]
        return f"{' '.join([self.task, self.method, *words])}, seed {self.seed}"


def expand(
    study: Study, scale: str, task: str, seeds: Sequence[int] | None = None, extra: Sequence[str] = ()
) -> list[Cell]:
    """The study's cells, seed by seed, each once; `extra` overrides come last in every cell.

    `seeds` take the place of the study's own. Raises UserError where the study does not run on that task and scale.
    """
    place = _place(study, scale, task)
    cells: dict[tuple[str, ...], Cell] = {}
    for seed in place.seeds if seeds is None else seeds:
        for method, point in _points(study, place):
            chosen = [*study.fixed.items(), *place.fixed.items(), *((k, v) for k, v in point if v is not None)]
            overrides = (
                f"task={task}",
                f"method={method}",
                f"scale={scale}",
                f"seed={seed}",
                *(f"{key}={text(value)}" for key, value in dict(chosen).items()),
                *extra,
            )
            cells.setdefault(overrides, Cell(task, scale, method, seed, point, overrides))
    return list(cells.values())


def _place(study: Study, scale: str, task: str) -> Place:
    places = study.places.get(scale, {})
    if task not in places:
        here = f"it has {', '.join(places)} there" if places else f"it runs at scale={', '.join(study.scales())}"
        other = study.scales(task)
        where = f", and {task} at scale={', '.join(other)}" if other else suggest(task, places)
        raise UserError(f"study {study.name} does not run on task {task} at scale={scale}; {here}{where}")
    return places[task]


def _points(study: Study, place: Place) -> Iterator[tuple[str, tuple[tuple[str, Any], ...]]]:
    for grid in study.grids:
        axes = {key: place.values.get(key, values) for key, values in grid.items()}
        for combination in itertools.product(*axes.values()):
            point = dict(zip(axes, combination, strict=True))
            if not any(_matches(point, rule) for rule in study.exclude):
                method = point.pop("method")
                yield method, tuple(point.items())


def _matches(point: Mapping[str, Any], rule: Mapping[str, Any]) -> bool:
    return all(
        key in point and point[key] in (wanted if isinstance(wanted, list) else [wanted])
        for key, wanted in rule.items()
    )


def text(value: Any) -> str:
    """A value in the grammar of overrides."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{','.join(map(text, value))}]"
    if isinstance(value, float):
        return repr(value)
    plain = str(value)
    return plain if re.fullmatch(r"[\w./-]+", plain) else quoted(plain)
