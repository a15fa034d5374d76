"""Which runs belong on one figure? One task, scale and variant; one run per method, seed and axis value.

A *variant* is a set of runs that agree in every setting but the seed, the method and the axis of the study. A
method's own settings (K, D, M, the random delays) must agree wherever a method has them; where they do not, the value
that was not asked for by an override, the recipe's, is the variant's. Runs of different variants are never pooled.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pipemare_exp.analysis.comparison import CUT
from pipemare_exp.analysis.row import RunRow
from pipemare_exp.errors import UserError

Missing = Callable[[Sequence[RunRow]], list[str]]
Common = tuple[tuple[str, str], ...]

END_TO_END = ("gpipe", "pipedream", "t1+t2+t3")
"""The methods of the end-to-end comparison."""

_SWITCHES = ("name", "label", "enabled")
# Overrides that choose what a row has a column for, or that change no result.
_NEUTRAL = ("experiment", "method", "scale", "seed", "task", "tracking", "runs", "device", "threads", "progress")
_NEUTRAL_PARTS = ("hydra", "tracking", "checkpoint", "log_every", "launcher", "data.root")


def newest(rows: Iterable[RunRow]) -> list[RunRow]:
    """One run for each method, seed and settings: the one that was made last (a rerun replaces)."""
    kept: dict[tuple[Any, ...], RunRow] = {}
    for row in sorted(rows, key=lambda row: (row.created or "", row.name)):
        kept[(row.task, row.scale, row.method, row.seed, json.dumps(row.settings, sort_keys=True))] = row
    return sorted(kept.values(), key=lambda row: (row.method, row.seed, row.name))


def ended(rows: Iterable[RunRow], task: str, scale: str | None = None) -> list[RunRow]:
    """Runs of a task (and scale) that finished or diverged."""
    return [row for row in rows if row.ended and row.task == task and scale in (None, row.scale)]


def common(row: RunRow, axis: Sequence[str] = ()) -> Common:
    """The settings that a run shares with every other one of its variant."""
    return tuple(sorted((k, v) for k, v in row.settings.items() if not k.startswith("method.") and k not in axis))


def plain(row: RunRow, axis: Sequence[str] = ()) -> bool:
    """Whether the run was asked for by task, scale, method and seed alone, and a value of the axis."""
    for override in row.overrides:
        key = override.partition("=")[0].lstrip("+~")
        if key in _NEUTRAL or key in axis or key.startswith(_NEUTRAL_PARTS):
            continue
        if key.startswith("method.") and key.endswith(_SWITCHES):
            continue
        return False
    return True


def variants(rows: Sequence[RunRow], axis: Sequence[str] = ()) -> list[list[RunRow]]:
    """`rows` as sets that may be drawn together; a synchronous run belongs to every set that it fits."""
    synchronous = [row for row in rows if row.synchronous]
    groups: dict[Common, list[RunRow]] = {}
    for row in rows:
        if not row.synchronous:
            groups.setdefault(common(row, axis), []).append(row)
    used: set[str] = set()
    for key, group in groups.items():
        fitting = _fitting(synchronous, key, axis)
        used |= {row.name for row in fitting}
        group += fitting
    for row in synchronous:
        if row.name not in used:
            groups.setdefault(common(row, axis), []).append(row)
    return [one for key in sorted(groups) for one in _own_settings_agree(groups[key], axis)]


def _fitting(synchronous: Sequence[RunRow], key: Common, axis: Sequence[str]) -> list[RunRow]:
    """One synchronous run per seed and axis value that agrees with `key` but for the cut; the same cut first."""

    def but_cut(one: Common) -> Common:
        return tuple(pair for pair in one if pair[0] not in CUT)

    stages = dict(key).get("pipeline.stages")
    chosen: dict[tuple[Any, ...], RunRow] = {}
    for row in synchronous:
        if but_cut(common(row, axis)) != but_cut(key):
            continue
        place = (row.seed, *(row.settings.get(name) for name in axis if name not in CUT))
        if place not in chosen or row.settings.get("pipeline.stages") == stages:
            chosen[place] = row
    return list(chosen.values())


def _own_settings_agree(rows: list[RunRow], axis: Sequence[str]) -> list[list[RunRow]]:
    """`rows` without those whose method has another value of its own settings than the recipe's.

    Where every run was given its value by an override there is no recipe's value: one set for each of them.
    """
    names = sorted({k for row in rows for k in row.settings if _is_own(k) and k not in axis})
    for name in names:
        values = {row.settings[name] for row in rows if name in row.settings}
        if len(values) < 2:
            continue
        part = name if name.count(".") == 1 else name.rpartition(".")[0] + "."
        unasked = {
            row.settings[name]
            for row in rows
            if name in row.settings and not any(one.lstrip("+").startswith(part) for one in row.overrides)
        }
        wanted = unasked if len(unasked) == 1 else values
        sets = [[row for row in rows if row.settings.get(name, value) == value] for value in sorted(wanted)]
        return [one for rest in sets for one in _own_settings_agree(rest, axis)]
    return [rows]


def _is_own(name: str) -> bool:
    return name.startswith("method.") and name.rpartition(".")[2] not in _SWITCHES


def choose(rows: Sequence[RunRow], missing: Missing, axis: Sequence[str] = ()) -> tuple[list[RunRow], list[str]]:
    """The runs of one variant that lacks nothing, and []; else those of the fullest one and what it lacks.

    `missing` says what a set of rows lacks. The plain variant goes before others; two others that both lack nothing
    are an error, since the caller must say which is meant.
    """
    sets = variants(newest(rows), axis) or [[]]
    whole = [one for one in sets if not missing(one)]
    asked_for_nothing = [one for one in whole if any(plain(row, axis) for row in one if not row.synchronous)]
    candidates = asked_for_nothing or whole
    if len(candidates) > 1:
        raise UserError(f"runs of several variants fit ({_differences(candidates)}); choose one with --only KEY=VALUE")
    if candidates:
        return candidates[0], []
    fullest = min(sets, key=lambda one: (len(missing(one)), -len(one)))
    return fullest, missing(fullest)


def for_drawing(runs: Iterable[RunRow], task: str, study: str, axis: Sequence[str] = ()) -> list[RunRow]:
    """Those of `runs` that a figure of `task` shows: those that ended, one a method, seed and axis value.

    None at all, or runs of several scales or variants, are a `UserError`: a mean over them would be of nothing.
    """
    rows = newest(ended(runs, task))
    if not rows:
        raise UserError(
            f'no finished or diverged run of task "{task}" to draw; make them with `pipemare sweep {study}_{task}`'
        )
    sets = variants(rows, axis)
    if len(sets) > 1 or len(sets[0]) < len(rows):
        raise UserError(f"runs of several variants on one figure ({_differences([[row] for row in rows])})")
    return rows


def _differences(sets: Sequence[Sequence[RunRow]]) -> str:
    """The settings in which the sets differ, with their values: `data.validation: 0, 200`."""
    found: dict[str, set[str]] = {}
    for rows in sets:
        merged: Mapping[str, str] = {k: v for row in rows for k, v in row.settings.items()}
        for name, value in merged.items():
            found.setdefault(name, set()).add(value)
    words = [
        f"{name}: {', '.join(sorted(values))}"
        for name, values in sorted(found.items())
        if len(values) > 1 and not name.startswith("pipeline.boundaries") and not name.endswith(_SWITCHES)
    ]
    return "; ".join(words) or "no common settings"


def with_setting(rows: Iterable[RunRow], wanted: Sequence[str]) -> list[RunRow]:
    """The rows that have every one of the settings `KEY=VALUE`, by override or resolved."""

    def has(row: RunRow, one: str) -> bool:
        key, _, value = one.partition("=")
        return one in row.overrides or row.settings.get(key) == value

    return [row for row in rows if all(has(row, one) for one in wanted)]


def labelled(rows: Sequence[RunRow], table: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The lines of a figure's CSV, each with the task and scale of the runs that it is of."""
    return [{"task": rows[0].task, "scale": rows[0].scale, **one} for one in table]


def lacking(rows: Iterable[RunRow], labels: Sequence[str]) -> list[str]:
    """The method labels of which there is no run."""
    there = {row.method for row in rows}
    return [label for label in labels if label not in there]
