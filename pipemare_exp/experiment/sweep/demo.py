"""Which trainings make up the demo, and how are they run side by side so that none is lost?

Every cell is an ordinary `pipemare train` in a process of its own with one thread; what it prints goes to
RUN/output.log. Finished runs are passed over, interrupted ones resume, and one that fails stops no other.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType

from pipemare_exp import cli
from pipemare_exp.errors import UserError, suggest
from pipemare_exp.experiment.config.identity import run_name
from pipemare_exp.experiment.config.lengths import last_step
from pipemare_exp.experiment.config.load import load
from pipemare_exp.experiment.runs.folder import FINAL, Run
from pipemare_exp.experiment.sweep import fork_server as training_process

DEMO_CELLS = {
    "digits": ("gpipe", "pipedream", "async", "t1", "t2", "t1_t2", "pipemare"),
    "numerals": ("gpipe", "async", "pipemare"),
}
"""Task -> the methods (files in configs/method) that the demo trains."""

TICK = 0.2  # seconds between two looks at the processes
GRACE = 60.0  # seconds that interrupted trainings have to write their checkpoints


@dataclass
class Cell:
    """One training: its overrides, the run folder that they lead to, its length, and what became of it."""

    task: str
    method: str
    seed: int
    run: Run
    steps: int
    process: BaseProcess | None = field(default=None, repr=False)
    began: float = 0.0
    seconds: float = 0.0
    error: str | None = None

    @property
    def title(self) -> str:
        return f"{self.task} {self.method}, seed {self.seed}"

    @property
    def overrides(self) -> list[str]:
        return overrides(self.task, self.method, self.seed)

    @property
    def done(self) -> bool:
        """Whether nothing is left to train."""
        return self.run.outcome in FINAL

    @property
    def step(self) -> int:
        """Updates done, as far as the run has said."""
        rows = self.run.metrics()
        return int(rows[-1]["step"]) if rows else 0


def overrides(task: str, method: str, seed: int) -> list[str]:
    """The overrides of a cell."""
    return [f"task={task}", f"method={method}", f"seed={seed}"]


def cells(tasks: Sequence[str], seeds: int, root: Path, extra: Sequence[str] = ()) -> list[Cell]:
    """The demo's cells for seeds 0 to `seeds` - 1, seed by seed, with the run folders under `root`.

    `extra` overrides apply to all. UserError for a task that has no demo.
    """
    from pipemare_exp.experiment.training.assemble import prepare  # imports torch

    known, made = DEMO_CELLS, []
    for task in tasks:
        if task not in known:
            raise UserError(f'no demo of task "{task}"; there are: {", ".join(known)}{suggest(task, known)}')
    for task in tasks:
        for seed in range(seeds):
            for method in known[task]:
                cfg = prepare(load([*overrides(task, method, seed), *extra])).cfg
                made.append(Cell(task, method, seed, Run(root / run_name(cfg)), last_step(cfg)))
    return made


def train(
    cells: Sequence[Cell],
    root: Path,
    jobs: int,
    tick: Callable[[], None],
    extra: Sequence[str] = (),
    stopping: Callable[[], None] = lambda: None,
    work: Callable[[list[str]], int] = cli.main,
) -> None:
    """Train the cells that are not done, `jobs` at a time, those of most steps first, so that no long one is left over
    while the other jobs idle; `tick` is called about five times a second.

    A cell's `error` says why it came to no result. Ctrl-C (or SIGTERM) passes the wish on, waits until every
    child has written its checkpoint (`stopping` is called before the wait), and then raises KeyboardInterrupt. `work`
    is what a process does with the arguments of `pipemare`.
    """
    waiting = sorted((cell for cell in cells if not cell.done), key=lambda cell: -cell.steps)
    running: list[Cell] = []
    with _terminate_as_interrupt():
        try:
            while waiting or running:
                while waiting and len(running) < jobs:
                    _start(waiting[0], root, extra, work)
                    running.append(waiting.pop(0))
                tick()
                time.sleep(TICK)
                for cell in [cell for cell in running if cell.process and not cell.process.is_alive()]:
                    _ended(cell)
                    running.remove(cell)
            tick()
        except BaseException:  # Ctrl-C, or a fault of the display: no training is left behind
            stopping()
            _stop(running)
            raise


def _start(cell: Cell, root: Path, extra: Sequence[str], work: Callable[[list[str]], int]) -> None:
    arguments = ["train", *cell.overrides, *extra, "--runs", str(root)]
    try:
        cell.run.path.mkdir(parents=True, exist_ok=True)
        cell.process = training_process.start(work, arguments, cell.run.path / "output.log")
    except OSError as error:
        raise UserError(f"cannot write {cell.run.path}: {error.strerror}; choose another place with --runs") from error
    cell.began = time.monotonic()


def _ended(cell: Cell) -> None:
    assert cell.process is not None
    cell.seconds = time.monotonic() - cell.began
    if not cell.done and cell.process.exitcode == 0:
        cell.error = "configs/ or the code changed meanwhile, it trained another configuration; start the demo again"
    elif not cell.done:
        cell.error = last_line(cell.run.path / "output.log") or f"ended with exit code {cell.process.exitcode}"
    cell.process = None


def last_line(path: Path) -> str:
    """The last line of a file that is not blank, or "" where there is none."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _stop(running: Sequence[Cell]) -> None:
    """Ask the trainings to checkpoint and leave; a second Ctrl-C, or too long a wait, kills what is left."""
    processes = [cell.process for cell in running if cell.process is not None]
    for process in processes:
        if process.is_alive() and process.pid is not None:
            os.kill(process.pid, signal.SIGINT)
    deadline = time.monotonic() + GRACE
    try:
        for process in processes:
            process.join(max(deadline - time.monotonic(), 0.1))
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()  # it resumes from its last checkpoint
                process.join()


@contextlib.contextmanager
def _terminate_as_interrupt() -> Iterator[None]:
    """While entered, SIGTERM raises KeyboardInterrupt, so that the children are never left running."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
