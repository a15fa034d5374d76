"""Where runs lie, what is in the folder of one, and how it is read and written.

    RUN = <runs>/<task>-<method>-<scale>-s<seed>-<first 8 digits of the hash>/
      config.yaml        the resolved configuration         overrides.json   what the command line said
      meta.json          command, commit, versions, machine  metrics.jsonl   one row a line: the source of
      truth status.json        running | finished | diverged | interrupted | failed, with pid, step, time
      result.json        once the outcome is final (finished, diverged)
      checkpoints/       last.pt and the ones before it     error.txt        the traceback of a failure
      lock               held by the process that trains here

Small files are replaced whole (temporary file, fsync, rename), so that a reader never sees half of one.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipemare_exp.environment import RUNS
from pipemare_exp.errors import UserError
from pipemare_exp.experiment.config import yaml_text
from pipemare_exp.paths import project_root

FINAL = ("finished", "diverged")
"""Outcomes after which nothing is left to train."""


def runs_root(option: str | os.PathLike[str] | None = None) -> Path:
    """The folder of runs: the option, else the environment's PIPEMARE_RUNS, else results/runs."""
    chosen = option or os.environ.get(RUNS)
    return Path(chosen).expanduser().absolute() if chosen else project_root() / "results" / "runs"


def finite_json(value: Any) -> Any:
    """`value` with NaN and infinities replaced by None, which is what JSON can say of them."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite_json(item) for item in value]
    return value


def sync_folder(folder: Path) -> None:
    """Make the renames done in `folder` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str, durable: bool = True) -> None:
    """Replace `path` by `text`, wholly or not at all; `durable`: and wait until the disk has it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        if durable:
            os.fsync(file.fileno())
    os.replace(temporary, path)
    if durable:
        sync_folder(path.parent)


def write_json(path: Path, value: Any, durable: bool = True) -> None:
    """Replace `path` by `value` as JSON, NaN and infinities as null."""
    write_text(path, json.dumps(finite_json(value), indent=2, allow_nan=False) + "\n", durable)


class Run:
    """The folder of one run. Reading asks the disk every time; an absent file reads as empty (or None)."""

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path)

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def config(self) -> dict[str, Any]:
        """The resolved configuration."""
        try:
            text = (self.path / "config.yaml").read_text(encoding="utf-8")
        except FileNotFoundError:
            return {}
        return yaml_text.loads(text) or {}

    @property
    def overrides(self) -> list[str]:
        return self._json("overrides.json") or []

    @property
    def meta(self) -> dict[str, Any]:
        return self._json("meta.json") or {}

    @property
    def result(self) -> dict[str, Any] | None:
        """result.json, or None while the outcome is not final."""
        return self._json("result.json")

    @property
    def status(self) -> dict[str, Any]:
        return self._json("status.json") or {}

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def outcome(self) -> str:
        """finished, diverged, running, interrupted or failed; a run whose process is gone is interrupted."""
        result = self.result
        if result is not None:
            return result["outcome"]
        status = self.status
        state = status.get("state", "interrupted")
        return "interrupted" if state == "running" and not self.is_locked() else state

    def metrics(self, kind: str | None = None) -> list[dict[str, Any]]:
        """Rows of metrics.jsonl (of one kind: train, eval, outcome). A torn last line is left out."""
        try:
            text = (self.path / "metrics.jsonl").read_text(encoding="utf-8")
        except FileNotFoundError:
            return []
        rows = list(_rows(text, self.path / "metrics.jsonl"))
        return [row for row in rows if kind is None or row.get("kind") == kind]

    def append(self, rows: list[dict[str, Any]]) -> None:
        """Add rows to metrics.jsonl and hand them to the operating system."""
        with open(self.path / "metrics.jsonl", "a", encoding="utf-8") as file:
            file.writelines(json.dumps(finite_json(row), allow_nan=False) + "\n" for row in rows)

    def sync_metrics(self) -> None:
        """Wait until the disk has all rows, before a checkpoint that relies on them."""
        with open(self.path / "metrics.jsonl", "a", encoding="utf-8") as file:
            os.fsync(file.fileno())

    def cut_metrics(self, step: int, evaluated: int) -> None:
        """Drop the rows that a run going on after `step`, last evaluated at `evaluated`, will write again."""
        limits = {"train": step, "eval": evaluated}
        kept = [row for row in self.metrics() if row["step"] <= limits.get(row["kind"], -1)]
        write_text(self.path / "metrics.jsonl", "".join(json.dumps(row) + "\n" for row in kept))

    def set_status(self, state: str, step: int, **more: Any) -> None:
        status = {"state": state, "pid": os.getpid(), "step": step, "updated": round(time.time(), 3), **more}
        write_json(self.path / "status.json", status, durable=False)

    def create(self) -> None:
        """Make the folder; UserError where that cannot be done."""
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            with open(self.path / "lock", "ab"):
                pass
        except OSError as error:
            raise UserError(
                f"cannot write the run folder {self.path}: {error.strerror}; "
                "choose another place with --runs DIR or PIPEMARE_RUNS"
            ) from error

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the run for this process; UserError when another trains it. A dead process holds nothing."""
        with open(self.path / "lock", "ab") as file:
            for _ in range(10):  # a reader's `is_locked` holds the lock for a moment
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    time.sleep(0.05)
            else:
                pid = self.status.get("pid", "unknown")
                raise UserError(
                    f"{self.path} is being trained by another process (pid {pid}); wait for it or stop it first"
                )
            yield

    def is_locked(self) -> bool:
        """Whether some process is training this run now."""
        try:
            with open(self.path / "lock", "rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:  # no lock file, or one that we may not open
            return False
        return False

    def _json(self, name: str) -> Any:
        path = self.path / name
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except json.JSONDecodeError as error:
            raise UserError(f"{path} is not JSON ({error}); move it away, it is written anew") from error


def find_runs(root: str | os.PathLike[str]) -> list[Run]:
    """The runs under `root`, in the order of their names; none where the folder does not exist."""
    return [Run(path.parent) for path in sorted(Path(root).glob("*/config.yaml"))]


def open_run(path: str | os.PathLike[str], runs: str | os.PathLike[str] | None = None) -> Run:
    """The run that a user named by its folder, or by its name under the folder of runs."""
    for candidate in (Path(path), runs_root(runs) / path):
        if (candidate / "config.yaml").is_file():
            return Run(candidate)
    raise UserError(f"{path} is no run (no config.yaml in it or in {runs_root(runs) / path}); see `pipemare runs`")


def _rows(text: str, path: Path) -> Iterator[dict[str, Any]]:
    lines = text.split("\n")
    for number, line in enumerate(lines, start=1):
        if not line:
            continue
        try:
            yield json.loads(line)
        except json.JSONDecodeError as error:
            if number < len(lines):  # only what follows the last newline can have been torn by a kill
                raise UserError(f"{path}, line {number}: not JSON; the file was changed by hand") from error
