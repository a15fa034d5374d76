"""`pipemare compare`: how do the methods compare on a task, over seeds?"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from pipemare_exp.analysis import comparison, words
from pipemare_exp.analysis import rows as run_rows
from pipemare_exp.data import TASKS
from pipemare_exp.errors import UserError
from pipemare_exp.experiment.runs.folder import runs_root

HELP = "compare the methods on a task: mean over seeds, interval, difference from synchronous training"

EXAMPLES = """\
examples:
  pipemare compare digits                        the methods in the order in which the paper builds them up
  pipemare compare cifar10 --runs DIR --json     for a script
  pipemare compare digits --interval bootstrap   BCa bootstrap instead of Student's t (for ten seeds or more)

n counts the runs that finished or diverged. Means are over finished runs; ± is the half width of a 95 %
interval over seeds. The difference is that of the last metric from the synchronous run of the same seed. Of
translation, best and last are BLEU on the validation set, test is that of the final weights on the test set. Published
values are best metrics of the paper's own models and lengths; the letters say where each is known from.
"""

NARROW = 100
"""Columns of a terminal below which a table with test scores goes without the best validation score."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `pipemare compare`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EXAMPLES
    parser.add_argument("task", metavar="TASK", help=", ".join(TASKS))
    parser.add_argument("--runs", metavar="DIR", help="the folder of runs (default: PIPEMARE_RUNS, else results/runs)")
    parser.add_argument("--interval", default="t", choices=("t", "bootstrap"), help="kind of interval (default: t)")
    parser.add_argument("--json", action="store_true", help="print JSON only")


def run(args: argparse.Namespace) -> int:
    """Print the comparison; UserError where there is no run of the task."""
    root = runs_root(args.runs)
    comparison.check_task(args.task)
    found = run_rows.read(root)
    rows = comparison.compare(found, args.task, args.interval)
    if not rows:
        raise UserError(f'no runs of task "{args.task}" under {root}; make some with `{maker(args.task)}`, or name '
                        "another folder with --runs")  # fmt: skip
    if args.json:
        print(json.dumps(rows, indent=2))
        return 0
    show(rows)
    for line in run_rows.damaged(found):
        print(line)
    return 0


def maker(task: str) -> str:
    """The command that makes runs of a task."""
    return "pipemare demo" if task == "digits" else f"pipemare train task={task} method=pipemare"


def show(rows: Sequence[dict[str, Any]]) -> None:
    """Print one table per scale, with a column for the task where there are several."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    # A pipe has no width, and rich would take 80 columns for it.
    console = Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else 120)
    for scale in dict.fromkeys(row["scale"] for row in rows):
        part = [row for row in rows if row["scale"] == scale]
        tasks = list(dict.fromkeys(row["task"] for row in part))
        metrics = dict.fromkeys(words.metric([row for row in part if row["task"] == task]) for task in tasks)
        title = f"{', '.join(tasks)}, scale {scale}: {', '.join(metrics)}"
        table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
        columns = _columns(part, narrow=console.width < NARROW)
        for heading, _ in columns:
            right = heading not in ("task", "method", "variant", "verdict")
            folds = heading in ("variant", "verdict")
            table.add_column(heading, justify="right" if right else "left", no_wrap=not folds, overflow="fold")
        for row in part:
            table.add_row(*(escape(cell(row)) for _, cell in columns))
        console.print(table)
        for note in dict.fromkeys(row["subset"] for row in part if "subset" in row):
            console.print(f"data: {escape(note)}", soft_wrap=True)
        for note in words.data_notes(part):
            console.print(escape(note), soft_wrap=True)
        if listed := words.sources(part):
            console.print(escape(f"{words.published_note(part)} {'; '.join(listed)}."), soft_wrap=True)


def _columns(part: Sequence[dict[str, Any]], narrow: bool) -> list[tuple[str, Callable[[dict[str, Any]], str]]]:
    """(heading, what stands there for a row) of the columns that `part` needs; `narrow`: without the least of them."""

    varied, tested = any("variant" in row for row in part), any("test_mean" in row for row in part)
    columns: list[tuple[str, Callable[[dict[str, Any]], str] | None]] = [
        ("task", (lambda row: row["task"]) if len({row["task"] for row in part}) > 1 else None),
        ("method", lambda row: row["method"]),
        ("variant", words.variant if varied else None),
        ("n", words.count),
        ("best", None if narrow and tested else lambda row: words.mean(row, "best")),
        ("last", lambda row: words.mean(row, "last")),
        ("minus\nsynchronous", words.difference),
        ("test", (lambda row: words.mean(row, "test")) if tested else None),
        ("verdict", lambda row: row["verdict"]),
        ("published", words.published if any(row["published"] for row in part) else None),
    ]
    return [(heading, cell) for heading, cell in columns if cell is not None]
