"""`pipemare track`: bring MLflow up to date with runs that were made without it."""

from __future__ import annotations

import argparse
from pathlib import Path

from pipemare_exp.errors import UserError
from pipemare_exp.experiment.runs.credentials import hide
from pipemare_exp.experiment.runs.folder import find_runs, open_run, runs_root
from pipemare_exp.experiment.tracking import tracker as tracking

HELP = "mirror runs into MLflow that were made without it (twice adds nothing)"

EXAMPLES = """\
examples:
  pipemare track                                             every run under results/runs (or PIPEMARE_RUNS)
  pipemare track results/runs/digits-gpipe-demo-s0-1a2b3c4d  one run, by its folder or by its name
  pipemare track --runs DIR --uri http://localhost:5000      into another store
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `pipemare track`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EXAMPLES
    parser.add_argument("run", nargs="*", metavar="RUN", help="folders or names of runs (default: all)")
    parser.add_argument("--runs", metavar="DIR", help="the folder of runs (default: PIPEMARE_RUNS, else results/runs)")
    parser.add_argument("--uri", help="MLflow's store (default: mlflow.db beside the runs' folder)")


def run(args: argparse.Namespace) -> int:
    """Mirror each run; those that cannot be are named, and the others done all the same."""
    root = runs_root(args.runs)
    runs = [open_run(name, args.runs) for name in args.run] or find_runs(root)
    if not runs:
        raise UserError(f"no runs under {root} to track; make some with `pipemare demo`, or name their folder: --runs")
    failures: list[str] = []
    stores: set[tuple[str, str]] = set()
    for one in runs:
        try:
            wanted = one.config.get("tracking") or {}
            default = tracking.default_uri(Path(one.path).resolve().parent)
            if not args.uri and wanted.get("uri") not in (None, default):
                raise UserError(
                    f"its config.yaml names the store {hide(str(wanted['uri']))}; name that store with --uri, with its "
                    "password if it has one (a run's folder does not decide where this command writes)"
                )
            uri = args.uri or default
            experiment = wanted.get("experiment") or "pipemare"
            tracking.mirror_run(one, uri, experiment)
        except Exception as error:  # a damaged run, or a store that fails: the other runs are still mirrored
            text = next(iter(hide(str(error)).strip().splitlines()), type(error).__name__)
            failures.append(f"{one.name}: {text[:200]}")
            continue
        stores.add((uri, experiment))
        print(f"tracked {one.name} ({one.outcome})")
    for uri, experiment in sorted(stores):
        print(tracking.how_to_see(uri, experiment))
    if failures:
        raise UserError(f"{len(failures)} of {len(runs)} runs could not be tracked: " + "; ".join(failures))
    return 0
