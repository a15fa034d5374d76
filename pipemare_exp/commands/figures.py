"""`pipemare figures`: make the figures and tables, from logged runs, theory and costs."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pipemare_exp.errors import UserError, suggest

if TYPE_CHECKING:
    from paper_figures.registry import Entry
    from pipemare_exp.analysis.row import RunRow

HELP = "make the figures and tables of the paper from logged runs, theory and costs"

EXAMPLES = """\
examples:
  pipemare figures --list                          every figure and table: ready, or what is missing
  pipemare figures                                 all that are ready, into results/figures
  pipemare figures theory_heatmap table1           these two, which need no run
  pipemare figures ablation_digits --scale demo    one, from the runs of a scale
  pipemare figures ablation                        the ablation of every task that has its runs
  pipemare figures --runs results/demo --out /tmp  from committed rows (runs.csv, metrics.csv) alone
  pipemare figures --rows results/demo             write those rows from the runs of results/runs
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `pipemare figures`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EXAMPLES
    add_choice(parser)
    parser.add_argument("--list", action="store_true", help="print one line a figure or table and make nothing")
    parser.add_argument("--out", metavar="DIR", help="where to write (default: results/figures)")
    parser.add_argument("--only", metavar="KEY=VALUE", action="append", default=[],
                        help="only runs with this setting (may be given several times)")  # fmt: skip
    parser.add_argument("--rows", metavar="DIR", help="write the runs as rows (runs.csv, metrics.csv) "
                        "into DIR and draw nothing")  # fmt: skip


def add_choice(parser: argparse.ArgumentParser) -> None:
    """The arguments that say which figures of which runs are meant; those of `pipemare report` too."""
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="figures or tables, or families of them (default: all)"
    )
    parser.add_argument("--runs", metavar="DIR", help="run directories, or a folder with runs.csv and "
                        "metrics.csv (default: PIPEMARE_RUNS, else results/runs)")  # fmt: skip
    parser.add_argument("--scale", help="only runs of this scale (default: every scale that has the runs)")
    parser.add_argument("--data", metavar="DIR", help="the data folder, for the heat map's cpusmall")


def choice(args: argparse.Namespace) -> tuple[list[Entry], Path]:
    """The figures and the folder of runs that the arguments of `add_choice` mean; UserError where there is none."""
    import_figures()
    from paper_figures import registry
    from pipemare_exp.experiment.runs.folder import runs_root

    if args.scale is not None and args.scale not in registry.SCALES:
        raise UserError(f'scale "{args.scale}"; allowed: {", ".join(registry.SCALES)}'
                        f"{suggest(args.scale, registry.SCALES)}")  # fmt: skip
    root = runs_root(args.runs)
    entries = registry.find(args.names) if args.names else list(registry.ENTRIES)
    if args.runs and not root.is_dir():
        raise UserError(f"--runs {args.runs}: no such folder; give a folder of runs, or of runs.csv and metrics.csv")
    return entries, root


def run(args: argparse.Namespace) -> int:
    """Make what was asked for; without names, all that is ready, and say what is skipped and why."""
    entries, root = choice(args)
    from paper_figures.runs import select
    from pipemare_exp.analysis import rows
    from pipemare_exp.paths import project_root

    found = rows.read(root)
    for line in rows.damaged(found):
        print(line, file=sys.stderr)
    logged = select.with_setting(found, args.only)
    if args.scale:
        logged = [row for row in logged if row.scale == args.scale]
    if args.rows:
        paths = rows.write([row for row in logged if row.ended], Path(args.rows))
        print("\n".join(map(str, paths)))
        return 0
    if args.list:
        for entry in entries:
            print(f"{entry.name:<28} {_state(entry, logged, args.scale)}")
        return 0
    out = Path(args.out) if args.out else project_root() / "results" / "figures"
    try:
        return _make(entries, args, logged, out)
    except OSError as problem:
        raise UserError(
            f"cannot write to {out} ({problem.strerror}); choose another folder with --out DIR"
        ) from problem


def _make(entries: list[Entry], args: argparse.Namespace, logged: list[RunRow], out: Path) -> int:
    """Draws the entries and prints the files; one that was named must be ready, others may be skipped."""
    from pipemare_exp.analysis import data_of_runs

    skipped: list[Entry] = []
    for entry in entries:
        if entry.kind != "runs":
            _show(entry.make(out, data_root=_data_root(args.data)))
            continue
        scales = [args.scale] if args.scale and entry.name in args.names else entry.scales(logged)
        if not scales and entry.name in args.names:
            _raise_missing(entry, logged, args.scale)
        if not scales:
            skipped.append(entry)
        for scale in scales:
            _show(entry.make(out, logged, scale))
            for note in data_of_runs.note(entry.chosen(logged, scale)[0]):
                print(f"{entry.name}: {note}", file=sys.stderr)
    if skipped and len(skipped) == len(entries):  # a family of which no task has its runs
        _raise_missing(skipped[0], logged, args.scale)
    for entry in skipped:
        print(f"skipped {entry.name}: {_state(entry, logged, args.scale)}", file=sys.stderr)
    return 0


def _show(paths: list[Path]) -> None:
    print("  ".join(str(path) for path in paths), flush=True)


def _state(entry: Entry, logged: list[RunRow], scale: str | None) -> str:
    """`ready`, with the scales of the runs, or what is missing and the command that makes it."""
    if entry.kind != "runs":
        return f"ready ({entry.kind})"
    try:
        scales = entry.scales(logged)
        if scales:
            return f"ready ({', '.join(scales)})"
        nearest = entry.nearest_scale(logged, scale)
        return f"missing {', '.join(entry.chosen(logged, nearest)[1])}: {entry.sweep(nearest)}"
    except UserError as problem:
        return f"unclear: {problem}"


def _raise_missing(entry: Entry, logged: list[RunRow], scale: str | None) -> None:
    nearest = entry.nearest_scale(logged, scale)
    lacks = entry.chosen(logged, nearest)[1]
    raise UserError(f"{entry.name}: no runs at scale {nearest} of {', '.join(lacks)}; make them with "
                    f"`{entry.sweep(nearest)}`")  # fmt: skip


def _data_root(option: str | None) -> Path:
    from pipemare_exp.data.cache import data_root

    return data_root(option)


def import_figures() -> None:
    """paper_figures lies beside the package; an installation that left it out is told so."""
    logging.getLogger("matplotlib").setLevel(logging.WARNING)
    try:
        import paper_figures  # noqa: F401
    except ModuleNotFoundError as problem:
        if problem.name != "paper_figures":
            raise
        raise UserError("the package paper_figures cannot be imported; run `pipemare figures` from the "
                        "project's folder, or install the project again from it") from problem  # fmt: skip
