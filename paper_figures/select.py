"""Which runs belong on one figure: one task, scale and setting, one run per method, seed and axis value.

A run's *setting* is what its overrides change beyond the method, the seed and what cannot change a result.
Runs of different settings are never pooled: a figure takes the runs of the plain setting (no such override)
if they are enough, else of the only other setting that is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from paper_figures.rows import RunRow
from pipemare_exp.errors import UserError

# Overrides that choose the method and seed, which a row has as columns of their own, or that change no
# result.
_NEUTRAL = {
    "experiment",
    "method",
    "scale",
    "seed",
    "task",
    "tracking",
    "runs",
    "device",
    "threads",
    "progress",
    "launcher",
    "method.name",
    "method.label",
    "method.lr_rescheduling.enabled",
    "method.discrepancy_correction.enabled",
    "method.sync_warmup.enabled",
    "data.root",
}
_NEUTRAL_PREFIXES = ("hydra.", "hydra/", "tracking.", "checkpoint.", "progress.")

Setting = tuple[str, ...]


def setting(row: RunRow, axis: Sequence[str] = ()) -> Setting:
    """The overrides that set this run apart, sorted, without those of the keys in `axis`."""
    kept = []
    for override in row.overrides:
        key = override.partition("=")[0].lstrip("+~")
        if key not in _NEUTRAL and not key.startswith(_NEUTRAL_PREFIXES) and key not in axis:
            kept.append(override)
    return tuple(sorted(kept))


def newest(rows: Iterable[RunRow], axis: Sequence[str] = ()) -> list[RunRow]:
    """One run for each method, seed and value of the axis: the one that was made last (a rerun replaces)."""
    kept: dict[tuple[object, ...], RunRow] = {}
    for row in sorted(rows, key=lambda row: (row.created or "", row.name)):
        on_axis = tuple(sorted(one for one in row.overrides if one.partition("=")[0].lstrip("+~") in axis))
        kept[(row.task, row.scale, row.method, row.seed, setting(row), on_axis)] = row
    return sorted(kept.values(), key=lambda row: (row.method, row.seed, row.name))


def ended(rows: Iterable[RunRow], task: str, scale: str | None = None) -> list[RunRow]:
    """Runs of a task (and scale) that finished or diverged."""
    return [row for row in rows if row.ended and row.task == task and scale in (None, row.scale)]


def choose(
    rows: Sequence[RunRow], missing: Callable[[Sequence[RunRow]], list[str]], axis: Sequence[str] = ()
) -> tuple[list[RunRow], list[str]]:
    """The rows of one setting that lack nothing, and []; else the rows of the fullest one and what they lack.

    `missing` says what a set of rows lacks. Two settings besides the plain one that both lack nothing are
    an error: the caller must say which is meant.
    """
    groups: dict[Setting, list[RunRow]] = {}
    for row in newest(rows, axis):
        groups.setdefault(setting(row, axis), []).append(row)
    lacks = {one: missing(group) for one, group in groups.items()}
    complete = [one for one in sorted(groups) if not lacks[one]]
    if () in complete:
        return groups[()], []
    if len(complete) > 1:
        several = "; ".join(" ".join(one) for one in complete)
        raise UserError(f"runs of several settings fit: {several}; choose one with --only OVERRIDE")
    if complete:
        return groups[complete[0]], []
    if not groups:
        return [], missing([])
    fullest = min(sorted(groups), key=lambda one: len(lacks[one]))
    return groups[fullest], lacks[fullest]


def with_override(rows: Iterable[RunRow], wanted: Sequence[str]) -> list[RunRow]:
    """The rows that were made with every one of the `wanted` overrides."""
    return [row for row in rows if all(one in row.overrides for one in wanted)]


def lacking(rows: Iterable[RunRow], labels: Sequence[str]) -> list[str]:
    """The method labels of which there is no run."""
    there = {row.method for row in rows}
    return [label for label in labels if label not in there]
