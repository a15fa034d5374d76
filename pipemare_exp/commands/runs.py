"""`pipemare runs`: which runs are there, and how did each end?"""

from __future__ import annotations

import argparse
import json
from typing import Any

from pipemare_exp.analysis import comparison as report
from pipemare_exp.analysis import records
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
    found = records.collect(root)
    if args.task:
        report.check_task(args.task)
        found = [record for record in found if record.task in (args.task, None)]
    if args.json:
        print(json.dumps([record.as_json() for record in found], indent=2))
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
    for record in found:
        table.add_row(escape(record.name), record.outcome, _number(record.step, "d"),
                      *map(_number, (record.best, record.last, record.test, record.seconds)))  # fmt: skip
    console = Console()
    console.print(table)
    for record in found:
        if record.problem:
            console.print(f"{escape(record.name)}: {escape(record.problem)}", style="yellow", soft_wrap=True)
    return 0


def _number(value: Any, form: str = ".1f") -> str:
    return "-" if value is None else format(value, form)
