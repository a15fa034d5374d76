"""Logged runs as one table of plain rows, read from run directories or, the same, from committed files.

A folder of committed rows holds two files:

- `runs.csv`: one row per run. The columns are the fields of `RunRow` but `evals`; lists and objects are JSON.
- `metrics.csv`: one row per evaluation, keyed by `identity` (and `name`: a copied run keeps its identity).

`write` makes them from rows, `read` reads a folder of either kind. Only what a run logged is in a row: a
value that a run has not logged is None, an empty cell.
"""

from __future__ import annotations

import csv
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from paper_figures.style import write_csv
from pipemare_exp.errors import UserError

RUNS_FILE = "runs.csv"
METRICS_FILE = "metrics.csv"
ENDED = ("finished", "diverged")


@dataclass(frozen=True)
class RunRow:
    """One run: who it is, what it was told, what came out, and what made it."""

    identity: str
    name: str
    task: str
    scale: str
    method: str
    seed: int
    overrides: list[str]
    outcome: str
    metric: str
    best: float | None
    last: float | None
    test: dict[str, Any] | None
    step: int | None
    epoch: int | None
    epochs: int | None
    seconds: float | None
    model: str | None
    stages: int | None
    microbatches: int | None
    slots: str | None
    optimizer: str | None
    rate: float | None
    lr_rescheduling_steps: int | None
    decay: float | None
    warmup_steps: int | None
    segment: int | None
    delay_scale: float | None
    settings: dict[str, str]
    notes: dict[str, Any]
    command: str | None
    commit: str | None
    dirty: bool | None
    created: str | None
    versions: dict[str, Any]
    machine: dict[str, Any]
    evals: list[dict[str, Any]] = field(default_factory=list)

    @property
    def ended(self) -> bool:
        """Whether the run came to a result: it finished, or it diverged."""
        return self.outcome in ENDED

    @property
    def synchronous(self) -> bool:
        """Whether every step of this run flushes the pipeline."""
        return self.method == "gpipe"

    def curve(self) -> tuple[list[int], list[float]]:
        """(finished epochs, metric in percent) of the evaluations, without those that are not finite."""
        points = [(row["epoch"], row["value"]) for row in self.evals if _finite(row["value"])]
        return [epoch for epoch, _ in points], [value for _, value in points]


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and abs(value) < float("inf")


_SCALARS = [one.name for one in fields(RunRow) if one.name != "evals"]
_JSON = {"overrides", "test", "settings", "notes", "versions", "machine"}
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
_PATHS = ("runs=", "data.root=", "tracking.uri=", "--runs=")
_FLOATS = {"best", "last", "seconds", "rate", "decay", "delay_scale"}


def _dig(tree: Any, *keys: str) -> Any:
    """The value at a path of nested mappings, None where the path ends early."""
    for one in keys:
        if not isinstance(tree, Mapping):
            return None
        tree = tree.get(one)
    return tree


def _stages(config: Mapping[str, Any]) -> int | None:
    """P: the stages of the cut, times the parts that each was split into."""
    stages = _dig(config, "pipeline", "stages")
    return None if stages is None else stages * (_dig(config, "pipeline", "split") or 1)


def _part(config: Mapping[str, Any], part: str, number: str) -> Any:
    """A number of one of the method's techniques, None where that technique is off."""
    return _dig(config, "method", part, number) if _dig(config, "method", part, "enabled") else None


def from_run(run: Any) -> RunRow:
    """The row of one `pipemare_exp.experiment.run_directory.Run`."""
    from pipemare_exp.experiment.report import settings_of

    config, meta = run.config, run.meta or {}
    result = run.result or {}
    metric = result.get("metric") or meta.get("metric") or _metric_of(run)
    evals = [
        {
            "step": row["step"],
            "epoch": row["epoch"],
            "split": row.get("split"),
            "loss": row.get("loss"),
            "value": row.get(metric),
            "seconds": row.get("seconds"),
        }
        for row in run.metrics("eval")
    ]
    settings = {key: text for key, text in settings_of(config).items() if key != "seed"}
    return RunRow(
        identity=result.get("config_hash") or Path(run.path).name.rsplit("-", 1)[-1],
        name=Path(run.path).name,
        task=_dig(config, "task", "name"),
        scale=config["scale"],
        method=_dig(config, "method", "label"),
        seed=config["seed"],
        overrides=[one for one in run.overrides if not one.startswith(_PATHS)],
        outcome=run.outcome,
        metric=metric,
        best=result.get("best"),
        last=result.get("last"),
        test=result.get("test"),
        step=result.get("step"),
        epoch=result.get("epoch"),
        epochs=config.get("epochs"),
        seconds=result.get("seconds"),
        model=_dig(config, "model", "name"),
        stages=_stages(config),
        microbatches=_dig(config, "pipeline", "microbatches"),
        slots=_dig(config, "pipeline", "slots"),
        optimizer=_dig(config, "optimizer", "name"),
        rate=_dig(config, "optimizer", "rate"),
        lr_rescheduling_steps=_part(config, "lr_rescheduling", "steps"),
        decay=_part(config, "discrepancy_correction", "decay"),
        warmup_steps=_part(config, "sync_warmup", "steps"),
        segment=_dig(config, "pipeline", "recompute"),
        delay_scale=_dig(config, "method", "hogwild", "delay_scale"),
        settings=settings,
        notes=dict(meta.get("notes") or {}),
        command=_without_paths(meta.get("command")),
        commit=meta.get("commit"),
        dirty=meta.get("dirty"),
        created=meta.get("created"),
        versions=dict(meta.get("versions") or {}),
        machine=dict(meta.get("machine") or {}),
        evals=evals,
    )


def _metric_of(run: Any) -> str:
    """The metric of a run without a result: the one of its evaluations, else that of its kind of task."""
    for row in run.metrics("eval"):
        for name in ("accuracy", "bleu"):
            if name in row:
                return name
    return "accuracy" if _dig(run.config, "task", "name") in ("digits", "cifar10") else "bleu"


def _without_paths(command: str | None) -> str | None:
    """The command less the places on one machine, which no reader of the rows has."""
    if command is None:
        return None
    words = command.split()
    kept = [
        word
        for before, word in zip(["", *words], words, strict=False)
        if not word.startswith(_PATHS) and word != "--runs" and before != "--runs"
    ]
    return " ".join(kept)


def as_rows(runs: Iterable[Any]) -> list[RunRow]:
    """Rows of `runs`, which may be rows already."""
    return [run if isinstance(run, RunRow) else from_run(run) for run in runs]


def write(rows: Sequence[RunRow], folder: Path) -> list[Path]:
    """Writes `runs.csv` and `metrics.csv`; rows sorted by name, so that the same runs give the same bytes."""
    rows = sorted(rows, key=lambda row: row.name)
    table = [
        {
            name: json.dumps(getattr(row, name), sort_keys=True) if name in _JSON else _exact(getattr(row, name))
            for name in _SCALARS
        }
        for row in rows
    ]
    metrics = [
        {"identity": row.identity, "name": row.name, **{key: _exact(value) for key, value in one.items()}}
        for row in rows
        for one in row.evals
    ]
    head = {"identity": None, "name": None, "step": None}
    return [
        write_csv(folder / RUNS_FILE, table or [dict.fromkeys(_SCALARS)]),
        write_csv(folder / METRICS_FILE, metrics or [head]),
    ]


def _exact(value: Any) -> Any:
    """Floats in full, so that a figure drawn from the files equals the one drawn from the runs."""
    return repr(value) if isinstance(value, float) else value


def _cell(name: str, text: str) -> Any:
    if text == "":
        return {} if name in ("settings", "notes", "versions", "machine") else [] if name == "overrides" else None
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
        with (folder / RUNS_FILE).open(newline="", encoding="utf-8") as file:
            lines = [line for line in csv.DictReader(file) if line["name"]]
        return [
            RunRow(**{name: _cell(name, line[name]) for name in _SCALARS}, evals=evals.get(line["name"], []))
            for line in lines
        ]
    except (OSError, KeyError, TypeError, ValueError) as problem:
        raise UserError(
            f"{folder} is no folder of committed rows ({type(problem).__name__}: {problem}); it must hold "
            f"{RUNS_FILE} and {METRICS_FILE} as `pipemare figures --rows` writes them"
        ) from problem


def committed(folder: Path) -> list[Path]:
    """The folders of committed rows: `folder` itself, else those in it; [] for a folder of run directories."""
    if (folder / RUNS_FILE).is_file():
        return [folder]
    return sorted(path.parent for path in folder.glob(f"*/{RUNS_FILE}"))


def read(folder: Path) -> list[RunRow]:
    """The rows of a folder: of its `runs.csv` where it has one, else of the run directories in it.

    A folder that does not exist, or has neither, gives no rows: what then is missing is for the figures to
    say.
    """
    folder = Path(folder)
    if places := committed(folder):
        return [row for one in places for row in read_committed(one)]
    from pipemare_exp.experiment.run_directory import find_runs

    rows = []
    for run in find_runs(folder):
        try:
            rows.append(from_run(run))
        except (UserError, KeyError, TypeError, ValueError) as problem:
            # One damaged run must not cost the figures of the others; `pipemare runs` lists it as damaged.
            logging.getLogger(__name__).warning("%s is left out, it cannot be read: %s", run.path, problem)
    return rows
