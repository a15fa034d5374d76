"""Logged runs as one table of plain rows, read from run directories or, the same, from committed files.

A folder of committed rows holds two files:

- `runs.csv`: one row per run. The columns are the fields of `RunRow` but `problem` and what the other files hold;
  lists and objects are JSON. Where no run has recorded its data, the column `data` is not there.
- `metrics.csv`: one row per evaluation, keyed by `identity` (and `name`: a copied run keeps its identity).

and two more where any run has logged what they hold, keyed in the same way:

- `health.csv`: one row per evaluation, of the last step before it;
- `staleness.csv`: one row per step looked at and stage.

`write` makes them from rows, `read` reads a folder of either kind. A value that a run has not logged is an empty cell.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from pipemare_exp.analysis.csv import write_csv
from pipemare_exp.analysis.row import DAMAGED, HEALTH, STALENESS, RunRow, from_run
from pipemare_exp.errors import UserError
from pipemare_exp.experiment.runs.folder import find_runs

RUNS_FILE = "runs.csv"
METRICS_FILE = "metrics.csv"
HEALTH_FILE = "health.csv"
STALENESS_FILE = "staleness.csv"
COLUMNS = [one.name for one in fields(RunRow) if one.name not in ("evals", "health", "staleness", "problem")]
_JSON = {"overrides", "test", "settings", "notes", "versions", "machine", "data"}
_INTEGERS = {
    "seed",
    "step",
    "epoch",
    "epochs",
    "stages",
    "microbatches",
    "lr_rescheduling_steps",
    "warmup_steps",
    "segment",
}
_FLOATS = {"best", "last", "seconds", "rate", "decay", "delay_scale"}


def write(rows: Sequence[RunRow], folder: Path) -> list[Path]:
    """Writes the files of a folder of committed rows; sorted by name, so that the same runs give the same bytes."""
    rows = sorted(rows, key=lambda row: row.name)
    columns = [name for name in COLUMNS if name != "data" or any(row.data for row in rows)]
    table = [
        {
            name: json.dumps(getattr(row, name), sort_keys=True) if name in _JSON else _exact(getattr(row, name))
            for name in columns
        }
        for row in rows
    ]
    metrics = [_keyed(row, one) for row in rows for one in row.evals]
    head = {"identity": None, "name": None, "step": None}
    return [
        write_csv(folder / RUNS_FILE, table or [dict.fromkeys(columns)]),
        write_csv(folder / METRICS_FILE, metrics or [head]),
        *_write_if_any(folder / HEALTH_FILE, [_keyed(row, one) for row in rows for one in row.health]),
        *_write_if_any(
            folder / STALENESS_FILE,
            [_keyed(row, line) for row in rows for one in row.staleness for line in _lines(one)],
        ),
    ]


def _keyed(row: RunRow, values: dict[str, Any]) -> dict[str, Any]:
    return {"identity": row.identity, "name": row.name, **{key: _exact(value) for key, value in values.items()}}


def _write_if_any(path: Path, table: list[dict[str, Any]]) -> list[Path]:
    """The file, if there is anything to hold; none of earlier rows is left where there is not."""
    if not table:
        path.unlink(missing_ok=True)
        return []
    return [write_csv(path, table)]


def _lines(one: dict[str, Any]) -> list[dict[str, Any]]:
    """One look at a run's stages as lines, one a stage."""
    stages = range(len(one[STALENESS[0]]))
    place = {"step": one["step"], "epoch": one["epoch"]}
    return [{**place, "stage": stage, **{name: one[name][stage] for name in STALENESS}} for stage in stages]


def _exact(value: Any) -> Any:
    """Floats in full, so that a figure drawn from the files equals the one drawn from the runs."""
    return repr(value) if isinstance(value, float) else value


def _cell(name: str, text: str) -> Any:
    if text == "":
        return (
            {} if name in ("settings", "notes", "versions", "machine", "data") else [] if name == "overrides" else None
        )
    if name in _JSON:
        return json.loads(text)
    if name in _INTEGERS:
        return int(text)
    if name in _FLOATS:
        return float(text)
    return text == "true" if name == "dirty" else text


def read_committed(folder: Path) -> list[RunRow]:
    """The rows that `write` put into `folder`; a file that is not of that form is an error that names it."""
    folder = Path(folder)
    evals: dict[str, list[dict[str, Any]]] = {}
    try:
        with (folder / METRICS_FILE).open(newline="", encoding="utf-8") as file:
            for line in csv.DictReader(file):
                if line["name"]:
                    evals.setdefault(line["name"], []).append(
                        {
                            "step": int(line["step"]),
                            "epoch": int(line["epoch"]),
                            "split": line["split"] or None,
                            **{key: float(line[key]) if line[key] else None for key in ("loss", "value", "seconds")},
                        }
                    )
        health, staleness = _read_health(folder / HEALTH_FILE), _read_staleness(folder / STALENESS_FILE)
        with (folder / RUNS_FILE).open(newline="", encoding="utf-8") as file:
            lines = [line for line in csv.DictReader(file) if line["name"]]
        return [
            RunRow(
                **{name: _cell(name, line[name]) for name in COLUMNS if name != "data" or name in line},
                evals=evals.get(line["name"], []),
                health=health.get(line["name"], []),
                staleness=list(staleness.get(line["name"], {}).values()),
            )
            for line in lines
        ]
    except (OSError, KeyError, TypeError, ValueError) as problem:
        raise UserError(
            f"{folder} is no folder of committed rows ({type(problem).__name__}: {problem}); it must hold "
            f"{RUNS_FILE} and {METRICS_FILE} as `pipemare figures --rows` writes them"
        ) from problem


def _read_health(path: Path) -> dict[str, list[dict[str, Any]]]:
    """By the run's name; {} where there is no such file."""
    found: dict[str, list[dict[str, Any]]] = {}
    for line in _lines_of(path):
        values: dict[str, Any] = {key: _number(line[key]) for key in HEALTH}
        whole = {key: int(line[key]) for key in ("step", "epoch", "max_delay") if line[key]}
        found.setdefault(line["name"], []).append(values | whole)
    return found


def _read_staleness(path: Path) -> dict[str, dict[int, dict[str, Any]]]:
    """By the run's name and the step; {} where there is no such file."""
    found: dict[str, dict[int, dict[str, Any]]] = {}
    for line in _lines_of(path):
        step = int(line["step"])
        empty = {"step": step, "epoch": int(line["epoch"]), **{name: [] for name in STALENESS}}
        one = found.setdefault(line["name"], {}).setdefault(step, empty)
        for name in STALENESS:
            one[name].append(_number(line[name]))
    return found


def _lines_of(path: Path) -> list[dict[str, str]]:
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _number(text: str) -> float | None:
    return float(text) if text else None


def committed(folder: Path) -> list[Path]:
    """The folders of committed rows: `folder` itself, else those in it; [] for a folder of run directories."""
    if (folder / RUNS_FILE).is_file():
        return [folder]
    return sorted(path.parent for path in folder.glob(f"*/{RUNS_FILE}"))


def read(folder: Path) -> list[RunRow]:
    """The rows of a folder, by name: of its committed files where it has some, else of the run directories in it.

    A run that cannot be read is a damaged row. A folder that does not exist, or has neither, gives no rows: what then
    is missing is for the reader to say.
    """
    folder = Path(folder)
    if places := committed(folder):
        rows = [row for one in places for row in read_committed(one)]
    else:
        rows = [from_run(run) for run in find_runs(folder)]
    return sorted(rows, key=lambda row: row.name)


def damaged(rows: Sequence[RunRow]) -> list[str]:
    """A line for each run that cannot be read and is left out: its name, and why."""
    return [f"left out, damaged: {row.name}: {row.problem}" for row in rows if row.outcome == DAMAGED]
