"""One job of a sweep: trains a cell, in a worker process or in the sweep's own, and leaves when the sweep stops.

The sweep asks for a stop by a file beside the runs: a job looks for it after every step, writes its checkpoint and
leaves. So does a worker whose sweep was killed. A signal to a worker is meant for the training that it has now.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from omegaconf import OmegaConf

from pipemare_exp.errors import UserError
from pipemare_exp.experiment.config.identity import run_name
from pipemare_exp.experiment.config.load import from_mapping, load
from pipemare_exp.experiment.config.schema import Config
from pipemare_exp.experiment.runs.credentials import hide
from pipemare_exp.experiment.runs.folder import FINAL, Run
from pipemare_exp.experiment.runs.writing import write_text
from pipemare_exp.experiment.training.interrupts import on_signals

LOOK = 0.3  # seconds between two looks for the wish to stop, in a worker
WAIT = 0.5  # seconds between two looks at a run that another process trains
DIED_TWICE = "its process died twice: killed, or out of memory"


@dataclass(frozen=True)
class Batch:
    """What a worker has to know: each job's overrides and run folder, by job number."""

    overrides: tuple[tuple[str, ...], ...]
    runs: tuple[str, ...]
    stop_file: str
    pid: int
    one_thread: bool


def train_cell(tree: Any, batch: Batch) -> str | None:
    """The job that Hydra composed `tree` for; as `train_job`."""
    from hydra.core.hydra_config import HydraConfig

    def composed() -> Config:
        return from_mapping(OmegaConf.to_container(tree, resolve=True))  # type: ignore[arg-type]

    return _train_job(int(HydraConfig.get().job.num), batch, composed)


def train_job(number: int, batch: Batch) -> str | None:
    """Train the job of that number. Returns the error that the run's folder cannot tell of."""
    return _train_job(number, batch, partial(load, batch.overrides[number]))


def _train_job(number: int, batch: Batch, configuration: Callable[[], Config]) -> str | None:
    stopped = _Stop(batch)
    failure = _until_result(configuration, batch.overrides[number], Run(batch.runs[number]), batch, stopped)
    if stopped.orphaned:
        os._exit(1)  # the checkpoint is written, and nobody waits for an answer
    return failure


def _until_result(
    configuration: Callable[[], Config], overrides: Sequence[str], run: Run, batch: Batch, stopped: _Stop
) -> str | None:
    """Train, or wait for another process that does, until the run has a result or this job is to stop."""
    while True:
        while run.is_locked() and not stopped():  # another sweep trains it
            time.sleep(WAIT)
        if run.outcome in FINAL or stopped():
            return None
        try:
            _train(configuration(), overrides, run, batch, stopped)
            return None
        except Exception as error:  # whatever it is, the other cells go on
            if not run.is_locked():  # else another sweep was faster
                return _failed(run, error)


def _failed(run: Run, error: Exception) -> str | None:
    """Write the failure into the run's folder; its line where that cannot be done."""
    line = first_line(error) if isinstance(error, UserError) else f"{type(error).__name__}: {first_line(error)}"
    try:
        run.create()
        run.set_status("failed", int(run.status.get("step", 0)), error=line)
        write_text(run.path / "error.txt", hide(traceback.format_exc()))
    except (OSError, UserError) as another:
        return f"{line} (and its folder cannot be written: {first_line(another)})"
    return None


def _train(cfg: Config, overrides: Sequence[str], run: Run, batch: Batch, stopped: _Stop) -> None:
    from pipemare_exp.experiment.training import assemble
    from pipemare_exp.experiment.training import session as training

    if batch.one_thread:
        cfg = replace(cfg, threads=cfg.threads or 1)  # set after the imports, by assemble.prepare
    cfg = replace(cfg, progress="plain")
    prepared = assemble.prepare(cfg)
    name = run_name(prepared.cfg)
    if name != run.name:
        raise RuntimeError(f"the job composed to {name}, planned was {run.name}")
    run.create()
    with open(os.devnull, "w", encoding="utf-8") as out:  # the run's own log has all of it
        result = training.train(cfg, overrides, runs=run.path.parent, out=out, prepared=prepared, stop=stopped)
    if result.outcome == "interrupted" and not stopped.worker:
        Path(batch.stop_file).write_text(str(result.exit_code - 128))  # the signal was the sweep's own


class _Stop:
    """Whether this job is to stop: the sweep wants it or is no more, or the worker got a signal of its own.

    The training takes signals itself; these handlers are for the time before and after it.
    """

    def __init__(self, batch: Batch):
        self.file, self.worker = batch.stop_file, os.getpid() != batch.pid
        self.parent = os.getppid()
        self.answer, self.next = False, 0.0
        if self.worker and threading.current_thread() is threading.main_thread():
            on_signals(self._note)
            # The terminal's Ctrl-C reaches every process; between trainings only the sweep itself acts on it.
            signal.signal(signal.SIGINT, signal.SIG_IGN)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.answer = True

    @property
    def orphaned(self) -> bool:
        """Whether this is a worker whose sweep was killed."""
        if not self.worker:
            return False
        sweep = multiprocessing.parent_process()
        if sweep is not None and sweep.sentinel is not None:  # a fork: its parent in the system is the server
            return not sweep.is_alive()
        return os.getppid() != self.parent

    def __call__(self) -> bool:
        if not self.answer and time.monotonic() >= self.next:
            self.next = time.monotonic() + LOOK
            self.answer = os.path.exists(self.file) or self.orphaned
        return self.answer


def first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
