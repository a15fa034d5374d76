"""`pipemare timeline`: what the ranks of a run with engine=runtime did when."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipemare_exp.arguments import whole
from pipemare_exp.errors import UserError
from pipemare_exp.settings import MOST_PARTS

HELP = "Show a real pipeline's measured utilization, and draw its timeline beside the schedule's own."

EXAMPLES = """examples:
  pipemare timeline digits-pipemare-demo-s0-1a2b3c4d
  pipemare timeline RUN --figure timeline.png --from-step 60 --steps 4

RUN/trace.json, written at the run's end, opens in ui.perfetto.dev or chrome://tracing.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.add_argument("run", metavar="RUN", help="a run's folder, or its name in the folder of runs")
    parser.add_argument("--runs", metavar="DIR", help="folder of runs (default: PIPEMARE_RUNS, else results/runs)")
    parser.add_argument("--figure", metavar="FILE", help="draw the timeline into FILE (png, pdf, svg)")
    parser.add_argument(
        "--from-step", type=whole(low=0), metavar="T", help="first step in the figure (default: near the end)"
    )
    parser.add_argument(
        "--steps", type=whole(high=MOST_PARTS), default=3, metavar="K", help="steps in the figure (default 3)"
    )
    parser.add_argument("--json", action="store_true", help="print RUN/runtime.json")


def run(args: argparse.Namespace) -> int:
    from pipemare_exp.experiment.runs.folder import open_run
    from pipemare_exp.experiment.runs.reading import check_object, read_json

    run = open_run(args.run, args.runs)
    path = run.path / "runtime.json"
    measured = read_json(path, check_object)
    if measured is None:
        raise UserError(f"{run.path} has no runtime.json: it did not run with engine=runtime, or is not through yet")
    if args.json:
        print(json.dumps(measured, indent=2))
    else:
        with _as_written(path):
            _show(measured)
    if args.figure:
        from pipemare_exp.experiment.runtime.figure import draw

        path = run.path / "trace.json"
        trace = read_json(path, check_object)
        if trace is None:
            raise UserError(f"{path} is not there, and the figure is drawn from it; train the run again")
        with _as_written(path):
            draw(trace, run.config, Path(args.figure), args.from_step, args.steps)
        if not args.json:
            print(f"figure: {args.figure}")
    return 0


@contextmanager
def _as_written(path: Path) -> Iterator[None]:
    """Within, `path`'s contents are used as a training writes them; Damaged where they are something else."""
    from pipemare_exp.experiment.runs.reading import Damaged

    try:
        yield
    except (KeyError, TypeError, AttributeError, IndexError, ArithmeticError) as error:
        raise Damaged(path, f"it is not what a training writes ({type(error).__name__}: {error})") from error


def _show(measured: dict[str, Any]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    def percent(value: float | None) -> str:
        return "-" if value is None else f"{100 * value:.1f} %"

    print(
        f"{measured['method']}, P = {measured['stages']}, N = {measured['microbatches']}, {measured['slots']} slots: "
        f"utilization {percent(measured['utilization'])} measured in steady state, "
        f"{percent(measured['utilization_model'])} by the model with equally long stages"
    )
    if measured["steps_per_second"] is not None:
        print(f"{measured['steps_per_second']:.3g} steps a second")
    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("rank", "stages", "busy", "F s", "B s", "R s", "U s", "sent", "weights", "copies", "T2", "peak"):
        table.add_column(heading, justify="right", no_wrap=True)
    for rank in measured["ranks"]:
        seconds, memory, stages = rank["seconds"], rank["memory"], rank["stages"]
        table.add_row(
            str(rank["rank"]),
            f"{stages[0]}-{stages[-1]}",
            percent(rank["utilization"]),
            *(f"{seconds[name]:.2f}" for name in ("forward", "backward", "recompute", "update")),
            f"{rank['bytes_sent'] / 1e6:.1f}",
            *(f"{memory[name] / 1e6:.2f}" for name in ("weights", "history", "buffers")),
            f"{rank['peak_memory'] / 1e6:.0f}",
        )
    Console(highlight=False, width=110).print(table)
    print("F, B, R, U: seconds in forwards, backwards, recomputations, updates. Memory and bytes sent in MB; copies:")
    print("past versions (PipeDream) or the current one (T2) beside the live weights; peak: of the process.")
