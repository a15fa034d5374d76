"""`pipemare demo`: the ablation of the paper on bundled data, in minutes: table, figure, MLflow."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pipemare_exp.analysis import comparison
from pipemare_exp.analysis.row import from_run
from pipemare_exp.arguments import whole
from pipemare_exp.commands import compare, sweep
from pipemare_exp.experiment.runs.folder import runs_root
from pipemare_exp.experiment.sweep import fork_server, study_file
from pipemare_exp.experiment.sweep.study import expand
from pipemare_exp.experiment.tracking import tracker as tracking
from pipemare_exp.settings import MOST_PARTS

if TYPE_CHECKING:
    from pipemare_exp.experiment.sweep.plan import Planned

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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `pipemare demo`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EXAMPLES
    parser.add_argument(
        "--seeds",
        type=whole(high=MOST_PARTS),
        default=1,
        metavar="K",
        help="seeds 0 to K-1 of every method (default: 1)",
    )
    parser.add_argument(
        "--jobs", type=whole(high=MOST_PARTS), default=2, metavar="J", help="trainings side by side (default: 2)"
    )
    parser.add_argument("--tasks", nargs="+", default=["digits", "numerals"], metavar="TASK", help="default: both")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="override a setting of all runs"
    )
    parser.add_argument("--runs", metavar="DIR", help="the folder of runs (default: PIPEMARE_RUNS, else results/runs)")


def run(args: argparse.Namespace) -> int:
    """Train what is missing, then table, figure, MLflow's address. 1 where a run failed, 128 + signal when stopped."""
    launcher = "fork" if fork_server.AVAILABLE else "joblib"
    if launcher == "fork":
        fork_server.begin()  # it imports while the cells are planned here
    from pipemare_exp.experiment.sweep.plan import plan  # imports torch

    study, root = study_file.load("demo"), runs_root(args.runs)
    cells = [cell for task in args.tasks for cell in expand(study, "demo", task, range(args.seeds), args.set)]
    planned = plan(cells, root)
    code = sweep.train(planned, root, launcher, {"n_jobs": str(args.jobs)}, retry_failed=True)
    if code <= 1:
        _conclude(args.tasks, planned, root)
    return code


def _conclude(tasks: Sequence[str], planned: Sequence[Planned], root: Path) -> None:
    """One table of the demo's own runs, a figure for each task, and how to see them in MLflow."""
    from paper_figures.runs.metric_over_epochs import draw

    found = [from_run(one.run) for one in planned if one.run and one.run.config]
    if not found:
        return
    compare.show([row for task in tasks for row in comparison.compare(found, task)])
    for task in tasks:
        ended = [row for row in found if row.ended and row.task == task]
        if ended:
            paths = draw(ended, task, root / "demo" / f"{task}_over_epochs")
            print(f"figure: {', '.join(str(path) for path in paths)}")
    settings = next(one.run.config["tracking"] for one in planned if one.run and one.run.config)
    if settings["name"] == "mlflow":
        print(tracking.how_to_see(settings["uri"] or tracking.default_uri(root), settings["experiment"]))
