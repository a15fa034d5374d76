"""Trains the cells of a sweep through a launcher, so that none is lost and none stops the others.

The launchers are Hydra's, which compose each job's configuration and call `worker.train_cell` in a worker process or
(basic) in this one, and `fork`, our own. A wish to stop travels as a file beside the runs, on this machine or another.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor
from pathlib import Path
from types import FrameType
from typing import Any

from pipemare_exp.errors import UserError, suggest
from pipemare_exp.experiment.config import compose
from pipemare_exp.experiment.sweep import fork_launcher
from pipemare_exp.experiment.sweep.fork_server import AVAILABLE, ONE_THREAD, environment
from pipemare_exp.experiment.sweep.plan import TO_DO, Planned
from pipemare_exp.experiment.sweep.worker import DIED_TWICE, WAIT, Batch, first_line, train_cell
from pipemare_exp.experiment.training.interrupts import on_signals

IN_PROCESS = "basic"
DRAIN = 2.0  # seconds without any training after which a stopped sweep no longer waits for its launcher


def launchers() -> list[str]:
    """The launchers that there are here."""
    from hydra.core.config_store import ConfigStore
    from hydra.core.plugins import Plugins

    Plugins.instance()  # registers them
    found = [name.removesuffix(".yaml") for name in ConfigStore.instance().list("hydra/launcher")]
    return sorted([*found, fork_launcher.NAME] if AVAILABLE else found)


class Sweep:
    """Trains `planned` cells under `root` with `launcher`; `options` are the launcher's own settings.

    Raises UserError for an unknown launcher or option, and a folder that cannot be written. `run()` returns None, or
    the number of the signal that asked for a stop. Afterwards each cell's `state` and `error` say what became of it.
    """

    def __init__(self, planned: Sequence[Planned], root: Path, launcher: str, options: Mapping[str, str]):
        known = launchers()
        if launcher not in known:
            raise UserError(f"launcher={launcher}; allowed: {', '.join(known)}{suggest(launcher, known)}")
        unknown = [key for key in options if key != "n_jobs"]
        if launcher == fork_launcher.NAME and unknown:
            raise UserError(f"launcher=fork has no setting {unknown[0]}; it has n_jobs")
        for key in options:
            if not re.fullmatch(r"[a-z]\w*(\.[a-z]\w*)*", key, re.ASCII):  # also what Hydra takes for its own: _target_
                raise UserError(
                    f"launcher.{key}: it is no setting of a launcher; those of {launcher} are in its manual"
                )
        self.planned, self.root, self.launcher, self.options = planned, root, launcher, dict(options)
        self.folder = root / ".sweep"
        self.stop_file = self.folder / f"stop-{os.getpid()}"
        self.signal: int | None = None
        self.launched = False
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.stop_file.unlink(missing_ok=True)
        except OSError as error:
            raise UserError(
                f"cannot write the folder of runs {root}: {error.strerror}; choose another with --runs"
            ) from error

    def run(self) -> int | None:
        """Train all that is to do. Raises UserError where the launcher will not do."""
        todo = [one for one in self.planned if one.state in (*TO_DO, "running")]
        if self.launcher != IN_PROCESS:  # the longest first, so that none is left over while the other jobs idle
            todo.sort(key=lambda one: -one.steps)
        todo.sort(key=lambda one: one.state == "running")  # trained by another process: waited for, at the end
        self._before = {id(one): one.run.status for one in todo if one.run}
        try:
            with self._signals(), environment({} if self.launcher == IN_PROCESS else ONE_THREAD):
                self._train(todo)
        except KeyboardInterrupt:
            if self.signal is None:
                raise
        finally:
            self._heed_stop_file()  # the launcher may be through before the watch has looked
            self.stop_file.unlink(missing_ok=True)
        return self.signal

    def _train(self, todo: list[Planned]) -> None:
        """All of them; those that a dying worker left are tried once more, each alone, and then given up."""
        if not todo or self._launch(todo):
            return
        left = [one for one in todo if one.state in TO_DO and not self._was_signalled(one)]
        for one in [one for one in left if one.state == "interrupted"]:
            if self.signal is None and not self._launch([one]):
                one.failure = DIED_TWICE
        rest = [one for one in left if one.state in TO_DO and one.failure is None]
        if rest and self.signal is None and len(rest) < len(todo):
            self._train(rest)
        for one in rest if len(rest) == len(todo) else []:
            one.failure = "no worker process came up: see launcher= and its memory"

    def _was_signalled(self, one: Planned) -> bool:
        """Whether this sweep's training of it wrote a checkpoint and left, which a process that dies does not say."""
        status = one.run.status if one.run else {}
        return status.get("state") == "interrupted" and status != self._before.get(id(one))

    def _launch(self, jobs: Sequence[Planned]) -> bool:
        """Hand `jobs` to the launcher; False where its workers died."""
        batch = Batch(
            tuple(one.cell.overrides for one in jobs),
            tuple(str(one.run.path) for one in jobs if one.run),
            str(self.stop_file),
            os.getpid(),
            self.launcher != IN_PROCESS,
        )
        try:
            if self.launcher == fork_launcher.NAME:
                self.launched = True
                returned: Sequence[Any] = fork_launcher.train(
                    batch, int(self.options["n_jobs"]), lambda: self.signal is not None
                )
            else:
                returned = self._multirun(batch)
        except BrokenExecutor:
            return self.signal is not None
        for one, result in zip(jobs, returned, strict=True):
            problem = getattr(result, "_return_value", result)
            if isinstance(problem, BaseException):  # outside the training, which records its own
                problem = f"{type(problem).__name__}: {first_line(problem)}"
            one.failure = problem if isinstance(problem, str) else None
        return True

    def _multirun(self, batch: Batch) -> Sequence[Any]:
        """What Hydra does for `--multirun`, with the jobs that the study gives instead of a product of lists."""
        from hydra._internal.callbacks import Callbacks
        from hydra.core.global_hydra import GlobalHydra
        from hydra.core.plugins import Plugins
        from hydra.errors import HydraException
        from hydra.types import HydraContext, RunMode
        from omegaconf.errors import OmegaConfBaseException

        with compose.session():
            hydra = GlobalHydra.instance().hydra
            assert hydra is not None
            try:
                master = hydra.compose_config("config", self._settings(), RunMode.MULTIRUN, False)
                context = HydraContext(config_loader=hydra.config_loader, callbacks=Callbacks(master))
                launcher = Plugins.instance().instantiate_launcher(
                    hydra_context=context, task_function=functools.partial(train_cell, batch=batch), config=master
                )
            except (HydraException, OmegaConfBaseException) as error:
                raise UserError(f"launcher={self.launcher}: {first_line(error)}") from error
            jobs = [compose.for_hydra(overrides) for overrides in batch.overrides]
            self.launched = True
            try:
                return launcher.launch(jobs, initial_job_idx=0)
            except BrokenExecutor:
                raise
            except (RuntimeError, OSError, HydraException, OmegaConfBaseException) as error:
                raise UserError(f"launcher={self.launcher} gave up: {first_line(error)}") from error

    def _settings(self) -> list[str]:
        """Overrides of Hydra's own configuration: the launcher, and no folders or logs beside the runs'."""
        options = {"batch_size": "1", **self.options} if self.launcher == "joblib" else self.options
        return [
            f"hydra/launcher={self.launcher}",
            "hydra/job_logging=none",
            "hydra/hydra_logging=none",
            "hydra.output_subdir=null",
            "hydra.job.chdir=false",
            f"hydra.sweep.dir={compose.quoted(str(self.folder))}",
            "hydra.sweep.subdir=.",
            *(f"hydra.launcher.{key}={value}" for key, value in options.items()),
        ]

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """The first signal asks all trainings to checkpoint and leave; a second one interrupts at once."""

        def note(number: int, frame: FrameType | None) -> None:
            if self.signal is not None:
                raise KeyboardInterrupt
            self.signal = number
            self.stop_file.touch()

        before = on_signals(note)
        ended = threading.Event()
        watch = threading.Thread(target=self._leave_when_idle, args=(ended,), daemon=True)
        watch.start()
        try:
            yield
        finally:
            ended.set()
            for number, handler in before.items():
                signal.signal(number, handler)

    def _heed_stop_file(self) -> None:
        """A training in this process that took the signal left its number in the file."""
        if self.signal is None and self.stop_file.exists():
            self.signal = int(self.stop_file.read_text() or signal.SIGINT)

    def _leave_when_idle(self, ended: threading.Event) -> None:
        """After the wish to stop, once nothing trains any more, interrupt the launcher: it need not go through the
        jobs that are left."""
        quiet = 0.0
        while not ended.wait(WAIT):
            self._heed_stop_file()
            if self.signal is not None:
                busy = any(one.run is not None and one.run.is_locked() for one in self.planned)
                quiet = 0.0 if busy else quiet + WAIT
                if quiet >= DRAIN and self.launched:
                    signal.raise_signal(signal.SIGINT)
                    return
