"""`pipemare report`: one page with every table and figure that is ready, and what stands behind each."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from pipemare_exp.commands import figures
from pipemare_exp.errors import UserError

HELP = "make one HTML page with all tables and figures that are ready, and what stands behind them"

EXAMPLES = """\
examples:
  pipemare report                                  results/report.html from the runs of results/runs
  pipemare report --scale demo --out demo.html     only runs of one scale
  pipemare report --runs results/demo              from committed rows (runs.csv, metrics.csv)
  pipemare report table1 ablation                  only these figures and tables (see: pipemare figures --list)

The page is one file that opens without a network: the comparison of methods, the figures and tables with the runs,
settings and commands behind each, versions and machines, and what should make a reader doubt.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `pipemare report`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EXAMPLES
    figures.add_choice(parser)
    parser.add_argument("--out", metavar="FILE", help="the page (default: results/report.html)")


def run(args: argparse.Namespace) -> int:
    """Write the page; what cannot be made yet is listed on it and is no error."""
    entries, root = figures.choice(args)
    from pipemare_exp.data.cache import data_root
    from pipemare_exp.experiment.runs.writing import write_text
    from pipemare_exp.paths import project_root
    from pipemare_exp.report import page as report_page

    out = Path(args.out) if args.out else project_root() / "results" / "report.html"
    if out.is_dir():
        raise UserError(f"--out {args.out}: a folder is there; name a file, such as {out / 'report.html'}")
    # What the page says of places: a path within the checkout, else the folder's name alone.
    inside = root.is_relative_to(project_root())
    shown_root = str(root.relative_to(project_root())) if inside else root.name
    asked = "" if shown_root == "results/runs" else f" --runs {shlex.quote(shown_root)}"
    scale = f" --scale {args.scale}" if args.scale else ""
    page = report_page.build(
        root,
        entries,
        scale=args.scale,
        shown_root=shown_root,
        command=" ".join(["pipemare report", *args.names]) + scale + asked,
        asked=asked,
        data_root=data_root(args.data),
        say=lambda text: print(f"drawing {text}", file=sys.stderr, flush=True),
    )
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_text(out, page.html())
    except OSError as problem:
        raise UserError(f"cannot write {out} ({problem.strerror}); choose another file with --out FILE") from problem
    size = out.stat().st_size / 1e6
    print(f"{out}: {len(page.runs)} runs ({page.outcomes()}), {len(page.items)} figures and tables, "
          f"{len(page.missing)} not ready, {size:.1f} MB")  # fmt: skip
    return 0
