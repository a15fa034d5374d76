"""`pipemare eval`: the last checkpoint of a run, or its best model, scored again."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from pipemare_exp.arguments import whole
from pipemare_exp.settings import WIDEST

HELP = "Score a run's last checkpoint again: the same number as the training logged at that step."

EXAMPLES = """examples:
  pipemare eval results/runs/digits-pipemare-demo-s0-1a2b3c4d
  pipemare eval digits-pipemare-demo-s0-1a2b3c4d --runs DIR --json
  pipemare eval numerals-pipemare-demo-s0-1a2b3c4d --beam 5 --output hyp.txt     translations of the test split
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.add_argument("run", metavar="RUN", help="a run's folder, or its name in the folder of runs")
    parser.add_argument("--runs", metavar="DIR", help="folder of runs (default: PIPEMARE_RUNS, else results/runs)")
    parser.add_argument("--best", action="store_true", help="the model of the best evaluation (checkpoint.best=true)")
    parser.add_argument("--json", action="store_true", help="print JSON only")
    parser.add_argument(
        "--other-data", action="store_true", help="go on where the data are not those that the run was trained on"
    )
    parser.add_argument(
        "--beam", type=whole(high=WIDEST), metavar="B", help="translation: width of the test's beam (default: 5)"
    )
    parser.add_argument(
        "--output",
        metavar="FILE",
        help="translation: write the test's hypotheses to FILE and the references to FILE.ref, and both as words to "
        "FILE.tok and FILE.ref.tok",
    )


def run(args: argparse.Namespace) -> int:
    from pipemare_exp import metrics
    from pipemare_exp.experiment.evaluate import evaluate
    from pipemare_exp.experiment.runs.folder import open_run

    testing = {"beam": args.beam, "output": Path(args.output) if args.output else None}
    scores = evaluate(
        open_run(args.run, args.runs),
        "best" if args.best else "last",
        args.other_data,
        **{name: value for name, value in testing.items() if value is not None},
    )
    if args.json:
        print(json.dumps(scores, indent=2))
        return 0
    name = scores["metric"]
    value = metrics.of(name).shown(scores[name], 4)
    logged = scores["logged"]
    said = "not evaluated at this step in the training" if logged is None else f"the training logged {logged:.4f}"
    print(f"step {scores['step']}: {scores['split']} {name} {value}, loss {scores['loss']:.6f} ({said})")
    if scores["test"] is not None:
        print("test: " + ", ".join(f"{key} {value}" for key, value in scores["test"].items()))
    return 0
