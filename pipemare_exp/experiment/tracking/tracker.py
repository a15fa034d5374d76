"""How does a run get into MLflow without ever costing the run anything?

The run directory is the source of truth and MLflow mirrors it (mlflow_mirror.py). A tracker writes from a
thread of its own: a slow, locked or unreachable store delays nothing, and any error becomes one warning line,
after which the run goes on untracked. What the store lacks then, the next `open` of the run or
`pipemare track RUN` adds.

MLflow is imported when a run asks for it and not before; `tracking=none` never does.
"""

from __future__ import annotations

import logging
import os
import queue
import shlex
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipemare_exp.experiment.tracking.mlflow_mirror import Mirror
    from pipemare_exp.experiment.tracking.tensorboard import TensorBoard

from pipemare_exp.experiment.runs.credentials import hide

log = logging.getLogger(__name__)

WRITE_INTERVAL = 1.0  # seconds between two writes of a live run
FINISH_TIMEOUT = 60.0  # seconds that a finished run waits for its last rows to be stored
STALL = 10.0  # seconds after which it no longer waits for a store that gets nothing done (locked, unreachable)
Rows = Iterable[Mapping[str, Any]]


class NullTracker:
    """Tracks nothing (`tracking=none`, or MLflow cannot be had)."""

    def log_rows(self, rows: Rows) -> None:
        """Ignore rows of metrics.jsonl."""

    def finish(self, result: Mapping[str, Any] | None = None) -> None:
        """Ignore the end of the run."""


class Tracker:
    """Mirrors one live run from a background thread. `log_rows` returns at once; neither method raises."""

    def __init__(self, make_mirror: Callable[[], Mirror]):
        self._rows: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._result: Mapping[str, Any] | None = None
        self._mirror: Mirror | None = None
        self._thread = threading.Thread(target=self._work, args=(make_mirror,), name="mlflow", daemon=True)
        self._thread.start()

    def log_rows(self, rows: Rows) -> None:
        """Hand over rows of metrics.jsonl; they are stored within seconds."""
        for row in rows:
            self._rows.put({**row, "time": time.time()})

    def finish(self, result: Mapping[str, Any] | None = None) -> None:
        """Store what is left, the outcome (of result.json) and the run's files; wait, but not for ever."""
        self._result = result
        self._closing.set()
        began = time.monotonic()
        while self._thread.is_alive():
            self._thread.join(0.1)
            now = time.monotonic()
            quiet = now - max(began, 0.0 if self._mirror is None else self._mirror.progress)
            if now - began > FINISH_TIMEOUT or quiet > STALL:
                log.warning("MLflow did not answer for %.0f s; `pipemare track RUN` mirrors the rest", quiet)
                return

    def _work(self, make_mirror: Callable[[], Mirror]) -> None:
        try:
            self._mirror = mirror = make_mirror()
            mirror.log_backlog()
            while not self._closing.wait(WRITE_INTERVAL):
                mirror.log_rows(self._take())
            mirror.log_rows(self._take())
            mirror.finish(self._result)
        except Exception as error:  # whatever the store does, the training must not notice
            _warn(error)

    def _take(self) -> list[dict[str, Any]]:
        """All rows handed over so far, so that one write stores them together."""
        rows = []
        while not self._rows.empty():
            rows.append(self._rows.get())
        return rows


def open(cfg: Any, run: Any) -> Tracker | TensorBoard | NullTracker:
    """The tracker that cfg.tracking (name, uri, experiment) asks for, for `run`; MLflow's never raises."""
    if cfg.tracking.name == "none":
        return NullTracker()
    if cfg.tracking.name == "tensorboard":
        from pipemare_exp.experiment.tracking.tensorboard import TensorBoard

        return TensorBoard(run)
    try:
        import_mlflow()  # here and not in the thread, where it would race with the run's own imports
        from pipemare_exp.experiment.tracking.mlflow_mirror import Mirror

        uri = cfg.tracking.uri or default_uri(Path(run.path).parent)
    except Exception as error:  # a broken installation of MLflow costs its mirror, not the run
        _warn(error)
        return NullTracker()
    return Tracker(lambda: Mirror(run, uri, cfg.tracking.experiment))


def mirror_run(run: Any, uri: str, experiment: str) -> str:
    """Bring MLflow up to date with a run directory, made with or without it; returns the MLflow run's id.

    Doing it twice adds nothing. Raises what MLflow raises.
    """
    import_mlflow()
    from pipemare_exp.experiment.tracking.mlflow_mirror import Mirror

    outcome, result = run.outcome, run.result  # first: a folder that cannot be read makes no MLflow run
    target = Mirror(run, uri, experiment)
    target.log_backlog()
    if outcome != "running":
        target.finish(result or {"outcome": outcome})
    return target.run_id


def default_uri(runs_root: Path) -> str:
    """The SQLite store beside the folder of runs."""
    return sqlite_uri(Path(runs_root).resolve().parent / "mlflow.db")


def sqlite_uri(store: Path) -> str:
    """The URI of a SQLite file, whatever characters its path has.

    Escaped is what SQLAlchemy reads as more than a path, and no more: beside the store MLflow makes an empty folder
    named as the URI spells it.
    """
    return "sqlite:///" + str(store).replace("%", "%25").replace("?", "%3F")


def how_to_see(uri: str, experiment: str) -> str:
    """The command that serves MLflow's page for a store, on this machine only and without network, and the address
    there of the experiment's table of runs."""
    program = "mlflow" if shutil.which("mlflow") else str(Path(sys.executable).with_name("mlflow"))
    where = ["--host", "127.0.0.1", "--port", "5000", "--workers", "1"]
    command = [program, "server", "--backend-store-uri", hide(uri), *where]
    try:
        import_mlflow()
        from pipemare_exp.experiment.tracking.mlflow_mirror import page

        place = page(uri, experiment)
    except Exception as error:  # a store that cannot be read; the command says more
        log.debug("MLflow: %s", error)
        place = ""
    return f"MLflow's page of these runs: start\n  {shlex.join(command)}\nand open\n  http://127.0.0.1:5000/#{place}"


def import_mlflow() -> None:
    """Import MLflow so that it neither talks to the network by itself nor prints; the user's settings win."""
    for name, value in {
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DO_NOT_TRACK": "true",
        "GIT_PYTHON_REFRESH": "quiet",  # no warning where git is not installed
        "MLFLOW_LOGGING_LEVEL": "WARNING",  # it announces every table that it creates
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",  # its own 7 tries take minutes on a server that is gone
        "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    }.items():
        os.environ.setdefault(name, value)
    import mlflow.tracking  # noqa: F401

    logging.getLogger("alembic").setLevel(logging.WARNING)


def _warn(error: Exception) -> None:
    first = next(iter(hide(str(error)).strip().splitlines()), "")[:200]
    kind = type(error).__name__
    log.warning("MLflow: %s: %s; the run goes on, `pipemare track RUN` mirrors it later", kind, first)
