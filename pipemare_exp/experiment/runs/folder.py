"""Where runs lie, and what is in the folder of one.

    RUN = <runs>/<task>-<method>-<scale>-s<seed>-<first 8 digits of the hash>/
      config.yaml      the resolved configuration
      overrides.json   what the command line said
      meta.json        command, commit, versions, machine, sessions
      metrics.jsonl    one row a line: the source of truth
      status.json      running | finished | diverged | interrupted | failed, with pid, step, time
      result.json      once the outcome is final (finished, diverged)
      checkpoints/     last.pt and the ones before it
      error.txt        the traceback of a failure
      lock             held by the process that trains here

How these files are read, replaced, added to and locked: reading.py, writing.py, rows.py, lock.py.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipemare_exp.disk import unwaiting
from pipemare_exp.environment import RUNS
from pipemare_exp.errors import UserError, printable
from pipemare_exp.experiment.runs import lock, reading, rows
from pipemare_exp.experiment.runs.credentials import hide
from pipemare_exp.experiment.runs.reading import Damaged, read_json
from pipemare_exp.experiment.runs.writing import write_json
from pipemare_exp.paths import project_root

FINAL = ("finished", "diverged")
"""Outcomes after which nothing is left to train."""


def runs_root(option: str | os.PathLike[str] | None = None) -> Path:
    """The folder of runs: the option, else the environment's PIPEMARE_RUNS, else results/runs."""
    chosen = option or os.environ.get(RUNS)
    return Path(chosen).expanduser().absolute() if chosen else project_root() / "results" / "runs"


class Run:
    """The folder of one run. Reading asks the disk every time; an absent file reads as empty (or None).

    What is there and cannot be used raises `Damaged`; only status.json, which the next session writes anew and which
    no power cut is waited for, reads as absent then.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path)

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    @property
    def name(self) -> str:
        """The folder's name as it may be shown: a terminal obeys control characters."""
        return printable(self.path.name)

    @property
    def config(self) -> dict[str, Any]:
        """The resolved configuration."""
        return reading.read_yaml(self.path / "config.yaml", reading.check_object) or {}

    @property
    def overrides(self) -> list[str]:
        return read_json(self.path / "overrides.json", reading.check_texts) or []

    @property
    def meta(self) -> dict[str, Any]:
        return read_json(self.path / "meta.json", reading.check_meta) or {}

    @property
    def result(self) -> dict[str, Any] | None:
        """result.json, or None while the outcome is not final."""
        return read_json(self.path / "result.json", reading.check_result)

    @property
    def status(self) -> dict[str, Any]:
        try:
            return read_json(self.path / "status.json", reading.check_status) or {}
        except Damaged:
            return {}

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def metrics_file(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def outcome(self) -> str:
        """finished, diverged, running, interrupted or failed; a run whose process is gone is interrupted."""
        result = self.result
        if result is not None:
            return result["outcome"]
        state = self.status.get("state", "interrupted")
        return "interrupted" if state == "running" and not self.is_locked() else state

    def metrics(self, kind: str | None = None) -> list[dict[str, Any]]:
        """Rows of metrics.jsonl (of one kind: train, eval, outcome). A torn last line is left out.

        Raises Damaged where rows are not there any more, or not the same, that were when the run came to its result.
        """
        marked = (self.result or {}).get("rows")
        reason = rows.lost(self.metrics_file, marked) if marked else None
        if reason:
            raise Damaged(self.metrics_file, reason, "restore it from a copy, or move the run's folder away")
        return [row for row in rows.read_rows(self.metrics_file) if kind is None or row["kind"] == kind]

    def append(self, more: list[dict[str, Any]]) -> None:
        """Add rows to metrics.jsonl."""
        rows.append(self.metrics_file, more)

    def set_status(self, state: str, step: int, **more: Any) -> None:
        status = {"state": state, "pid": os.getpid(), "step": step, "updated": round(time.time(), 3), **hide(more)}
        write_json(self.path / "status.json", status, durable=False)

    def create(self) -> None:
        """Make the folder; UserError where that cannot be done."""
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            with open(self.path / "lock", "ab", opener=unwaiting):
                pass
        except OSError as error:
            raise UserError(
                f"cannot write the run folder {self.path}: {error.strerror}; "
                "choose another place with --runs DIR or PIPEMARE_RUNS"
            ) from error

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the run for this process; UserError when another trains it. A dead process holds nothing."""
        with lock.held(self.path / "lock") as ours:
            if not ours:
                pid = self.status.get("pid", "unknown")
                raise UserError(
                    f"{self.path} is being trained by another process (pid {pid}); wait for it or stop it first"
                )
            yield

    def is_locked(self) -> bool:
        """Whether some process is training this run now."""
        return lock.is_held(self.path / "lock")


def find_runs(root: str | os.PathLike[str]) -> list[Run]:
    """The runs under `root`, in the order of their names; none where the folder does not exist."""
    return [Run(path.parent) for path in sorted(Path(root).glob("*/config.yaml"))]


def open_run(path: str | os.PathLike[str], runs: str | os.PathLike[str] | None = None) -> Run:
    """The run that a user named by its folder, or by its name under the folder of runs."""
    for candidate in (Path(path), runs_root(runs) / path):
        if (candidate / "config.yaml").is_file():
            return Run(candidate)
    raise UserError(f"{path} is no run (no config.yaml in it or in {runs_root(runs) / path}); see `pipemare runs`")
