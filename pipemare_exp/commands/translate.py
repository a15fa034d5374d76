"""`pipemare translate`: lines from standard input, translated by a trained run."""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Iterator
from itertools import islice
from typing import Any, TextIO

from pipemare_exp.arguments import whole
from pipemare_exp.errors import UserError
from pipemare_exp.settings import WIDEST

HELP = "Translate lines from standard input with a run's last checkpoint, one line out for each line in."

EXAMPLES = """examples:
  echo "der zug fährt um halb drei ab" | pipemare translate results/runs/numerals-pipemare-demo-s0-1a2b3c4d
  pipemare translate iwslt14-gpipe-laptop-s0-1a2b3c4d --runs DIR --beam 1 < talk.de > talk.en
"""

CHUNK = 128
"""Lines read before they are translated together, unless a person types them."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.add_argument("run", metavar="RUN", help="a translation run's folder, or its name in the folder of runs")
    parser.add_argument("--runs", metavar="DIR", help="folder of runs (default: PIPEMARE_RUNS, else results/runs)")
    parser.add_argument(
        "--beam", type=whole(high=WIDEST), default=5, metavar="B", help="width of the beam search (default: 5)"
    )
    parser.add_argument(
        "--other-data", action="store_true", help="go on where the data are not those that the run was trained on"
    )
    parser.add_argument(
        "--average",
        action="store_true",
        help="use the mean of the models of the last evaluations, which a run with evaluation.average=K has kept",
    )


def run(args: argparse.Namespace) -> int:
    """Raises UserError for a run that is no translation or has no checkpoint."""
    from pipemare_exp.experiment.evaluate import restore
    from pipemare_exp.experiment.runs.folder import open_run

    chosen = open_run(args.run, args.runs)
    loop = restore(chosen, other_data=args.other_data)
    task: Any = loop.task
    if not hasattr(task, "translate"):
        raise UserError(f"{chosen.path} is a run of task {task.name}, which translates nothing")
    kept = loop.kept_weights()
    if args.average and not kept:
        raise UserError(f"{chosen.path} has kept no models to average; train with evaluation.average=K")
    for stream in (sys.stdin, sys.stdout):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8")  # as all files of text are, whatever the locale
    with loop.engine.evaluation() as model:
        if args.average:
            model = task.averaged(kept)
        for lines in _chunks(sys.stdin):
            for line in task.translate(model, lines, args.beam):
                print(line)
            sys.stdout.flush()
    return 0


def _chunks(stream: TextIO) -> Iterator[list[str]]:
    """Lines without their ends, many at a time from a file, one at a time from a terminal."""
    size = 1 if stream.isatty() else CHUNK
    source = (line.rstrip("\r\n") for line in stream)
    while lines := list(islice(source, size)):
        yield lines
