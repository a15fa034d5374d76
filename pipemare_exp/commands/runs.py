"""`pipemare runs`: which runs are there, and how did each end?"""

from __future__ import annotations

import argparse
import json

from pipemare_exp.analysis import comparison, rows, words
from pipemare_exp.analysis.row import DAMAGED
from pipemare_exp.experiment.runs.folder import runs_root

HELP = "list the runs: outcome, step, best and last metric, time"

EXAMPLES = """\
examples:
  pipemare runs                    every run under results/runs (or PIPEMARE_RUNS)
  pipemare runs --task digits      one task's
  pipemare runs --json             the same for a script: [{name, task, method, seed, outcome, step, ...}]
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `pipemare runs`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EXAMPLES
    parser.add_argument("--runs", metavar="DIR", help="the folder of runs (default: PIPEMARE_RUNS, else results/runs)")
    parser.add_argument("--task", help="only runs of this task (damaged runs are always listed)")
    parser.add_argument("--json", action="store_true", help="print JSON only")


def run(args: argparse.Namespace) -> int:
    """List the runs; an empty folder is no error."""
    root = runs_root(args.runs)
    found = rows.read(root)
    if args.task:
        comparison.check_task(args.task)
        found = [row for row in found if row.task == args.task or row.outcome == DAMAGED]
    if args.json:
        print(json.dumps([row.as_json() for row in found], indent=2))
        return 0
    if not found:
        print(f"no runs under {root}; `pipemare demo` or `pipemare train task=digits method=pipemare` makes some")
        return 0
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("run", overflow="fold")
    table.add_column("outcome")
    for title in ("step", "best", "last", "test", "seconds"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in found:
        scores = [words.value(row.metric, value) for value in (row.best, row.last, row.test_score)]
        step = "-" if row.step is None else str(row.step)
        table.add_row(escape(row.name), row.outcome, step, *scores, words.value(None, row.seconds))
    console = Console()
    console.print(table)
    for row in found:
        if row.problem:
            console.print(f"{escape(row.name)}: {escape(row.problem)}", style="yellow", soft_wrap=True)
    return 0
