"""What a user sees of a sweep: one display for all cells, whichever launcher runs them where.

It reads the run folders, so it needs nothing from the workers. On a terminal: a bar for the whole and one for each
training that is under way; elsewhere a line now and then, and one for each cell that ends.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from pipemare_exp import metrics
from pipemare_exp.experiment.sweep.plan import Planned, seconds_left

INTERVAL = 1.0
LINES = 20.0  # seconds between two lines where the output is no terminal
ENDED = ("done", "diverged", "failed")


class Display:
    """Shows where `cells` are, from a thread of its own, while entered."""

    def __init__(self, cells: Sequence[Planned], jobs: int, console: Console | None = None):
        self.cells, self.jobs, self.console = cells, jobs, console or Console()
        self.bars = (
            Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.percentage:>3.0f} %"),
                TextColumn("{task.fields[note]}"),
                TimeElapsedColumn(),
                console=self.console,
            )
            if self.console.is_terminal
            else None
        )
        self._shown: dict[int, Any] = {}
        self._running: set[int] = set()
        self._told = {id(one) for one in cells if one.state in ENDED}
        self._began, self._next_line = time.monotonic(), 0.0
        self._first = sum(self._steps(one) for one in cells)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Display:
        if self.bars is not None:
            self.bars.start()
            self._whole = self.bars.add_task("all cells", total=sum(one.steps for one in self.cells), note="")
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()
        self.update()
        if self.bars is not None:
            self.bars.stop()

    def _watch(self) -> None:
        while not self._stop.wait(INTERVAL):
            self.update()

    def update(self) -> None:
        """Look at the run folders once."""
        for one in self.cells:
            if id(one) in self._told:
                continue
            state = one.state
            if state in ENDED:
                self._told.add(id(one))
            if state == "running":
                self._running.add(id(one))
                self._bar(one)
            elif state in ENDED or id(one) in self._running:  # interrupted: another process may still take it up
                self._tell(one, state)
        done, total = sum(self._steps(one) for one in self.cells), sum(one.steps for one in self.cells)
        note = f"{len(self._told)} of {len(self.cells)} cells, {clock(self._left(done, total))} left"
        if self.bars is not None:
            self.bars.update(self._whole, completed=done, note=note)
        elif time.monotonic() >= self._next_line and done > self._first:
            self._next_line = time.monotonic() + LINES
            self._say(f"{100 * done / max(total, 1):.0f} % of all steps, {note}")

    def _steps(self, one: Planned) -> int:
        return one.steps if id(one) in self._told else one.step

    def _left(self, done: int, total: int) -> float | None:
        """Seconds, from finished cells, else from the steps of this session."""
        known = seconds_left(self.cells, self.jobs)
        if known is None and done > self._first:
            return (time.monotonic() - self._began) * (total - done) / (done - self._first)
        return known

    def _bar(self, one: Planned) -> None:
        if self.bars is None:
            return
        if id(one) not in self._shown:
            self._shown[id(one)] = self.bars.add_task(one.cell.title, total=one.steps, note="")
        self.bars.update(self._shown[id(one)], completed=one.step, note=one.score)

    def _tell(self, one: Planned, state: str) -> None:
        """One line for a training that has ended; its bar makes room for the next."""
        self._running.discard(id(one))
        if self.bars is not None and id(one) in self._shown:
            self.bars.remove_task(self._shown.pop(id(one)))
        self._say(f"{one.cell.title}: {describe(one, state)}")

    def _say(self, line: str) -> None:
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)


def describe(one: Planned, state: str) -> str:
    """How far a cell is, in a few words."""
    if state == "failed":
        return f"failed: {one.error}"
    result = one.run.result if one.run else None
    if result is None:
        return state if state == "missing" else f"{state} at step {one.step} of {one.steps}"
    end = f"diverged at step {result['step']}" if state == "diverged" else "done"
    best, last = result["best"], result["last"]
    if best is None or last is None:
        return f"{end}, {result['seconds']:.0f} s"
    metric = metrics.of(result["metric"])
    values = f"{metric.shown(last, metric.digits)} (best {best:.{metric.digits}f})"
    return f"{end}, {metric.name} {values}, {result['seconds']:.0f} s"


def clock(seconds: float | None) -> str:
    """Hours and minutes, or minutes and seconds; a question mark for None."""
    if seconds is None:
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60} h {minutes % 60:02d} min" if minutes >= 60 else f"{minutes} min {rest:02d} s"
