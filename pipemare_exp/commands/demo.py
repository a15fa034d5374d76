"""`pipemare demo`: the ablation of the paper on bundled data, in minutes: table, figure, MLflow."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipemare_exp.analysis import comparison, words
from pipemare_exp.analysis.row import from_run
from pipemare_exp.commands import compare
from pipemare_exp.errors import UserError
from pipemare_exp.experiment.runs.folder import runs_root
from pipemare_exp.experiment.tracking import tracker as tracking

if TYPE_CHECKING:
    from pipemare_exp.experiment.sweep.demo import Cell

HELP = "train the methods on handwritten digits and on number phrases, side by side, and compare them"

EXAMPLES = """\
examples:
  pipemare demo                   seven methods on digits, three on numerals, one seed: minutes on two cores
  pipemare demo --tasks digits    digits only
  pipemare demo --seeds 3         over three seeds, with intervals
  pipemare demo --jobs 1          one training at a time
  pipemare demo --set epochs=5    shorter runs; they are kept apart from the others

Finished runs are not trained again, interrupted ones go on where they were: start it again at any time.
"""
PLAIN_INTERVAL = 20.0  # seconds between two lines where the output is no terminal


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `pipemare demo`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EXAMPLES
    parser.add_argument("--seeds", type=int, default=1, metavar="K", help="seeds 0 to K-1 of every method (default: 1)")
    parser.add_argument("--jobs", type=int, default=2, metavar="J", help="trainings side by side (default: 2)")
    parser.add_argument("--tasks", nargs="+", default=["digits", "numerals"], metavar="TASK", help="default: both")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="override a setting of all runs"
    )
    parser.add_argument("--runs", metavar="DIR", help="the folder of runs (default: PIPEMARE_RUNS, else results/runs)")


def run(args: argparse.Namespace) -> int:
    """Train what is missing, then table, figure, MLflow's address. 1 where a run failed, 130 after Ctrl-C."""
    from pipemare_exp.experiment.sweep import demo
    from pipemare_exp.experiment.sweep import fork_server as training_process

    for name in ("seeds", "jobs"):
        if getattr(args, name) < 1:
            raise UserError(f"--{name} {getattr(args, name)}: must be at least 1")
    root = runs_root(args.runs)
    training_process.begin()
    cells = demo.cells(args.tasks, args.seeds, root, args.set)
    todo = [cell for cell in cells if not cell.done]
    if len(todo) < len(cells):
        print(f"{len(cells) - len(todo)} of {len(cells)} runs are done already", flush=True)
    began = time.monotonic()
    if todo:
        display = Display(todo)
        try:
            with display:
                demo.train(todo, root, args.jobs, display.update, args.set, display.stopping)
        except KeyboardInterrupt:
            done = sum(cell.done for cell in cells)
            print(f"stopped: {done} of {len(cells)} runs are done, the others keep their checkpoints; "
                  "the same command goes on from there", flush=True)  # fmt: skip
            return 130
        print(f"trained in {time.monotonic() - began:.0f} s\n")
    _conclude(args.tasks, cells, root)
    print(
        "MLflow's page of these runs: start\n"
        f"  {tracking.page_command(tracking.default_uri(root))}\n"
        'and open http://127.0.0.1:5000, experiment "pipemare"; its chart view draws every metric'
    )
    failed = [cell for cell in cells if cell.error]
    for cell in failed:
        print(f"FAILED {cell.title}: {cell.error}\n  all of it: {cell.run.path / 'output.log'}")
    return 1 if failed else 0


def _conclude(tasks: Sequence[str], cells: Sequence[Cell], root: Path) -> None:
    """One table of the demo's own runs, and a figure for each task."""
    from paper_figures.runs.metric_over_epochs import draw

    found = [from_run(cell.run) for cell in cells if cell.run.config]
    compare.show([row for task in tasks for row in comparison.compare(found, task)])
    for task in tasks:
        ended = [row for row in found if row.ended and row.task == task]
        if ended:
            paths = draw(ended, task, root.parent / "demo" / f"{task}_over_epochs")
            print(f"figure: {', '.join(str(path) for path in paths)}")


class Display:
    """One view of all trainings: bars on a terminal, else a line now and then; a line for each that ends."""

    def __init__(self, cells: Sequence[Cell]):
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        self.cells, self.console = cells, Console()
        self._bars: Any = None
        if self.console.is_terminal:
            self._bars = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.percentage:>3.0f} %"),
                TextColumn("{task.fields[note]}"),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                console=self.console,
            )
        self._tasks: dict[int, Any] = {}
        self._told: set[int] = set()
        self._steps = {id(cell): 0 for cell in cells}
        self._next_line = 0.0
        self._began = time.monotonic()

    def __enter__(self) -> Display:
        if self._bars is not None:
            self._bars.start()
            self._whole = self._bars.add_task("all", total=sum(cell.steps for cell in self.cells), note="")
        return self

    def __exit__(self, *error: object) -> None:
        if self._bars is not None:
            self._bars.stop()

    def stopping(self) -> None:
        """Say why the command does not end at once."""
        self.console.print("stopping: waiting for the trainings to write their checkpoints (Ctrl-C: do not wait)")

    def update(self) -> None:
        """Look at the runs and show where they are."""
        for cell in self.cells:
            if cell.process is not None:
                self._steps[id(cell)] = cell.step
                self._bar(cell)
            elif cell.seconds and id(cell) not in self._told:
                self._tell(cell)
        total, done = sum(cell.steps for cell in self.cells), sum(self._steps.values())
        if self._bars is not None:
            self._bars.update(self._whole, completed=done, note=f"{len(self._told)} of {len(self.cells)} runs")
        elif time.monotonic() > self._next_line and done:
            self._next_line = time.monotonic() + PLAIN_INTERVAL
            gone = time.monotonic() - self._began
            left = gone * (total - done) / done
            ended = f"{len(self._told)} of {len(self.cells)} runs ended"
            times = f"{gone:.0f} s gone, about {left:.0f} s left"
            print(f"{100 * done / total:.0f} % of all steps, {ended}, {times}", flush=True)

    def _bar(self, cell: Cell) -> None:
        if self._bars is None:
            return
        if id(cell) not in self._tasks:
            self._tasks[id(cell)] = self._bars.add_task(cell.title, total=cell.steps, note="")
        row = from_run(cell.run)
        note = "" if row.last is None else f"{row.metric} {words.value(row.metric, row.last)} %"
        self._bars.update(self._tasks[id(cell)], completed=self._steps[id(cell)], note=note)

    def _tell(self, cell: Cell) -> None:
        """One line for a run that has ended; its bar makes room for the next."""
        self._told.add(id(cell))
        self._steps[id(cell)] = cell.steps
        if id(cell) in self._tasks:
            self._bars.remove_task(self._tasks.pop(id(cell)))
        row = from_run(cell.run)
        text = f"failed: {cell.error}" if cell.error else row.outcome
        if row.outcome == "diverged":
            text += f" at step {row.step}"
        if row.outcome == "finished" and row.last is not None:
            text += f", {row.metric} {row.last:.1f} % (best {row.best:.1f})"
        self.console.print(f"{cell.title}: {text}, {cell.seconds:.0f} s", markup=False, highlight=False, soft_wrap=True)
