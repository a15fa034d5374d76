"""Trainings that travel: composed with Hydra on one machine, trained in pieces on one that has no Hydra.

A cell is a JSON file {"overrides": [...], "config": {...}}: overrides, and what Hydra made of them.
What depends on the data and the model (stages, steps) is decided where the data are, as in `pipemare train`, so a run
has the same name and the same identity on both ways.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipemare_exp.errors import UserError
from pipemare_exp.experiment.config.load import from_mapping, load, to_mapping
from pipemare_exp.experiment.config.schema import Config

METHODS = ("gpipe", "async", "t1", "t1_t2", "pipemare")
"""Files in configs/method: the methods of the study at paper scale."""
SAVING = 20.0
"""Seconds of a piece kept for its last evaluation and checkpoint."""


def prepare(
    out: Path, task: str, methods: Sequence[str], scale: str, seeds: Iterable[int], more: Sequence[str] = ()
) -> list[Path]:
    """Write a cell for each method and seed to `out`. Raises UserError for a wrong name or override."""
    out.mkdir(parents=True, exist_ok=True)
    written = []
    for seed in seeds:
        for method in methods:
            # A bare machine has no MLflow; `pipemare track` mirrors the run later.
            named = [f"task={task}", f"method={method}", f"scale={scale}", f"seed={seed}"]
            overrides = [*named, "device=cuda", "tracking=none", *more]
            cell = {"overrides": overrides, "config": to_mapping(load(overrides))}
            path = out / f"{task}-{method}-{scale}-s{seed}.json"
            path.write_text(json.dumps(cell, indent=1) + "\n", encoding="utf-8")
            written.append(path)
    return written


def read(path: Path) -> tuple[Config, list[str]]:
    """The configuration and the overrides of a cell. Raises UserError where there is none."""
    try:
        cell = json.loads(path.read_text(encoding="utf-8"))
        return from_mapping(cell["config"]), list(cell["overrides"])
    except FileNotFoundError as error:
        raise UserError(f"{path} is not there; `pipemare gpu prepare DIR` writes cells") from error
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise UserError(f"{path} is no cell; `pipemare gpu prepare DIR` writes them") from error


def here(cfg: Config, data: str | None, device: str | None) -> Config:
    """`cfg` with this machine's place of the data, and another device."""
    cfg = replace(cfg, data=replace(cfg.data, root=data)) if data else cfg
    return replace(cfg, device=device) if device else cfg


def train(
    cells: Sequence[Path], *, runs: str | None, minutes: float, data: str | None = None, device: str | None = None,
    say: Any = print,
) -> tuple[bool, list[dict[str, Any]]]:  # fmt: skip
    """Train the cells one after the other for at most `minutes`: (whether all are through, a row for each).

    Called again it goes on: finished runs are passed over, an interrupted one resumes bit for bit. A run that fails
    does not keep the next one from its time.
    """
    from pipemare_exp.experiment.training.session import train as train_one

    deadline = time.monotonic() + 60.0 * minutes - SAVING
    given = [(path, *read(path)) for path in cells]  # a wrong file is told before anything is trained
    rows = []
    for path, cfg, overrides in given:
        if time.monotonic() >= deadline:
            rows.append({"cell": str(path), "run": None, "outcome": "not started in this piece"})
            continue
        result = train_one(here(cfg, data, device), overrides, runs=runs, stop=lambda: time.monotonic() >= deadline)
        rows.append({"cell": str(path), "run": str(result.run.path), **result.summary})
    through = all(row["outcome"] in ("finished", "diverged") for row in rows)
    if not through:
        say("time is up; the same command goes on where this one stopped")
    return through, rows
