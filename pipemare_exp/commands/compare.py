"""`pipemare compare`: how do the methods compare on a task, over seeds?"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipemare_exp.errors import UserError
from pipemare_exp.experiment import comparison_words as words
from pipemare_exp.experiment import records, report
from pipemare_exp.experiment.run_directory import runs_root

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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `pipemare compare`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EXAMPLES
    parser.add_argument("task", metavar="TASK", help=", ".join(report.tasks()))
    parser.add_argument("--runs", metavar="DIR", help="the folder of runs (default: PIPEMARE_RUNS, else results/runs)")
    parser.add_argument("--interval", default="t", choices=("t", "bootstrap"), help="kind of interval (default: t)")
    parser.add_argument("--json", action="store_true", help="print JSON only")


def run(args: argparse.Namespace) -> int:
    """Print the comparison; UserError where there is no run of the task."""
    root = runs_root(args.runs)
    rows, damaged = comparison(root, args.task, args.interval)
    if args.json:
        print(json.dumps(rows, indent=2))
        return 0
    show(rows)
    for record in damaged:
        print(f"left out, damaged: {record.name}: {record.problem}")
    return 0


def comparison(root: Path, task: str, interval: str = "t") -> tuple[list[dict[str, Any]], list[records.Record]]:
    """The rows of a task and the damaged run directories beside them."""
    report.check_task(task)
    found = records.collect(root)
    rows = report.compare(found, task, interval)
    if not rows:
        raise UserError(
            f'no runs of task "{task}" under {root}; make some with `{maker(task)}`, or name another folder with --runs'
        )
    return rows, [record for record in found if record.outcome == "damaged"]


def maker(task: str) -> str:
    """The command that makes runs of a task."""
    return "pipemare demo" if task == "digits" else f"pipemare train experiment={task}/pipemare"


def show(rows: Sequence[dict[str, Any]]) -> None:
    """Print one table per scale, with a column for the task where there are several."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    for scale in dict.fromkeys(row["scale"] for row in rows):
        part = [row for row in rows if row["scale"] == scale]
        tasks = list(dict.fromkeys(row["task"] for row in part))
        metrics = dict.fromkeys(words.metric([row for row in part if row["task"] == task]) for task in tasks)
        title = f"{', '.join(tasks)}, scale {scale}: {', '.join(metrics)}"
        table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
        if len(tasks) > 1:
            table.add_column("task", no_wrap=True)
        table.add_column("method", no_wrap=True)
        if any("variant" in row for row in part):
            table.add_column("variant", overflow="fold")
        tested = any("test_mean" in row for row in part)
        for heading in ("n", "best", "last", "minus synchronous", *(("test",) if tested else ())):
            table.add_column(heading, justify="right", no_wrap=heading != "minus synchronous")
        table.add_column("verdict", overflow="fold")
        if any(row["published"] for row in part):
            table.add_column("published", justify="right")
        for row in part:
            variant = [escape(row.get("variant", ""))] if any("variant" in row for row in part) else []
            published = [words.published(row)] if any(row["published"] for row in part) else []
            difference = row["difference"] or {"mean": None, "ci95": None}
            task = [row["task"]] if len(tasks) > 1 else []
            table.add_row(
                *task, row["method"], *variant, words.count(row),
                words.value(row["best_mean"], row["best_ci95"]), words.value(row["last_mean"], row["last_ci95"]),
                words.value(difference["mean"], difference["ci95"], "+.1f"),
                *([words.value(row.get("test_mean"), row.get("test_ci95"))] if tested else []), escape(row["verdict"]),
                *map(escape, published),
            )  # fmt: skip
        console.print(table)
        for note in dict.fromkeys(row["subset"] for row in part if "subset" in row):
            console.print(f"data: {escape(note)}", soft_wrap=True)
        if listed := words.sources(part):
            console.print(escape(f"{words.published_note(part)} {'; '.join(listed)}."), soft_wrap=True)
