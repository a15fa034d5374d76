"""What in the runs should make a reader doubt? Said on the page beside what it shows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pipemare_exp import methods
from pipemare_exp.analysis import words
from pipemare_exp.analysis.row import RunRow
from pipemare_exp.experiment.runs.same_data import named

FEW_SEEDS = 3
"""Below so many finished runs a group is named: two have an interval twelve standard errors wide, one has none."""


@dataclass(frozen=True)
class Doubt:
    """One kind of doubt: what it means for the reader, and the cases; without any, `none` is what to say."""

    title: str
    why: str
    none: str
    cases: list[str]


def doubts(rows: Sequence[RunRow], compared: Sequence[dict[str, Any]]) -> list[Doubt]:
    """All kinds, also those without a case. `compared`: the rows of `comparison.compare` of every task."""

    def runs(outcomes: Iterable[str], say: Callable[[RunRow], str]) -> list[str]:
        return [f"{row.name}: {say(row)}" for row in rows if row.outcome in outcomes]

    return [
        Doubt(
            "Diverged runs",
            "Counted in n and not averaged: the mean of the rest is that of the seeds which survived.",
            "No run diverged.",
            runs(["diverged"], lambda row: f"at step {row.step}; best until then: {_best(row)}"),
        ),
        Doubt(
            "Failed runs",
            "Ended by an error, so in no table and no figure.",
            "No run failed.",
            runs(["failed"], lambda row: row.problem or "no error was recorded"),
        ),
        Doubt(
            "Interrupted runs, and runs not yet at their end",
            "In no figure; the command that made them goes on with them.",
            "No run is unfinished.",
            runs(["interrupted", "running"], lambda row: f"{row.outcome} at step {row.step or 0}"),
        ),
        Doubt(
            "Damaged run folders",
            "They cannot be read and are left out of everything.",
            "No run folder is damaged.",
            runs(["damaged"], lambda row: row.problem or "unreadable"),
        ),
        Doubt(
            "Few seeds",
            f"Fewer than {FEW_SEEDS} finished runs: the interval is very wide or there is none, and chance may explain "
            "what is seen.",
            f"Every group has {FEW_SEEDS} finished runs or more.",
            [
                f"{_group(row)}: {finished} finished"
                for row in compared
                if (finished := row["outcomes"].get("finished", 0)) < FEW_SEEDS
            ],
        ),
        Doubt(
            "No synchronous run to compare with",
            "Of these nothing is said against synchronous training.",
            "Every method that finished has synchronous runs of the same seeds.",
            [
                f"{_group(row)}: {row['verdict']}"
                for row in compared
                if not methods.synchronous(row["method"])
                and row["last_mean"] is not None
                and (row["difference"] is None or row["difference"]["n"] == 0)
            ],
        ),
        Doubt(
            "Metrics picked on the test set",
            "The largest of several values on the test set is too good as an estimate; the last value was not picked.",
            "No best value was picked on a test set.",
            _picked_on_test(rows),
        ),
        Doubt(
            "Subsets and other notes on the data",
            "Numbers from a part of a data set do not compare with published ones.",
            "Every run used the whole of its data set.",
            sorted({f"{row['task']}, scale {row['scale']}: {row['subset']}" for row in compared if "subset" in row}),
        ),
        Doubt(
            "Runs compared on different data",
            "A difference between them is one of the data, too.",
            "Runs that are compared had the same data, where they recorded them.",
            [f"{_group(row)}: {named(row['data_differ'])}" for row in compared if "data_differ" in row],
        ),
        Doubt(
            "Code that is in no commit, or in several",
            "What made these runs cannot be had again from one commit alone.",
            "All runs of a task and scale were made by one clean commit.",
            _code(rows),
        ),
    ]


def _best(row: RunRow) -> str:
    return "not measured" if row.best is None else words.value(row.metric, row.best)


def _group(row: dict[str, Any]) -> str:
    variant = f" ({row['variant']})" if "variant" in row else ""
    return f"{row['task']}, scale {row['scale']}: {row['method']}{variant}"


def _places(rows: Sequence[RunRow]) -> list[tuple[str, list[RunRow]]]:
    """The runs that came to a result, by task and scale."""
    places: dict[str, list[RunRow]] = {}
    for row in rows:
        if row.ended:
            places.setdefault(f"{row.task}, scale {row.scale}", []).append(row)
    return sorted(places.items())


def _picked_on_test(rows: Sequence[RunRow]) -> list[str]:
    found = []
    for place, group in _places(rows):
        picked = [row for row in group if sum(one["split"] == "test" for one in row.evals) > 1]
        if picked:
            found.append(f"{place}: best {picked[0].metric} of {len(picked)} of {len(group)} runs")
    return found


def _code(rows: Sequence[RunRow]) -> list[str]:
    found = []
    for place, group in _places(rows):
        commits = sorted({row.commit[:10] for row in group if row.commit})
        dirty = sum(bool(row.dirty) for row in group)
        unknown = sum(not row.commit for row in group)
        if len(commits) > 1:
            found.append(f"{place}: {len(commits)} commits ({', '.join(commits)})")
        if dirty:
            found.append(f"{place}: {dirty} of {len(group)} runs with files that differed from the commit")
        if unknown:
            found.append(f"{place}: {unknown} of {len(group)} runs outside of a git checkout")
    return found
