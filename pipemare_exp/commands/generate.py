"""`pipemare generate`: text that a trained language model goes on with after a prompt."""

from __future__ import annotations

import argparse
import io
import sys
from typing import Any

from pipemare_exp.arguments import real, whole
from pipemare_exp.errors import UserError
from pipemare_exp.settings import MOST_PARTS

HELP = "Go on writing after a prompt with the last checkpoint of a language modelling run."

EXAMPLES = """examples:
  pipemare generate results/runs/docstrings-gpipe-demo-s0-1a2b3c4d "def "
  pipemare generate docstrings-pipemare-demo-s0-1a2b3c4d "Returns" --runs DIR --samples 3 --temperature 0.7 --top-k 20
"""

MOST = 1_000_000
"""Tokens of a text."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    add = parser.add_argument
    add("run", metavar="RUN", help="a language modelling run's folder, or its name in the folder of runs")
    add("prompt", metavar="PROMPT", help="the text to go on with, at least one character")
    add("--runs", metavar="DIR", help="folder of runs (default: PIPEMARE_RUNS, else results/runs)")
    add("--tokens", type=whole(high=MOST), default=400, metavar="T", help="tokens to draw (default: 400)")
    add(
        "--samples",
        type=whole(high=MOST_PARTS),
        default=1,
        metavar="S",
        help="texts, with the seeds SEED, SEED+1, ... (default: 1)",
    )
    add(
        "--temperature",
        type=real(0.0, 1000.0),
        default=0.8,
        metavar="X",
        help="0 takes the likeliest token (default: 0.8)",
    )
    add("--top-k", type=whole(), metavar="K", help="draw from the K likeliest tokens only (default: all)")
    add("--seed", type=whole(low=0), default=0, metavar="SEED", help="of the draws (default: 0)")
    add("--other-data", action="store_true", help="go on where the data are not those that the run was trained on")
    add("--checkpoint", choices=("last", "best"), default="last", help="whose weights (default: last)")


def run(args: argparse.Namespace) -> int:
    """Prints prompt and text. Raises UserError for a run that is no language model or has no checkpoint."""
    if not args.prompt:
        raise UserError('the prompt is empty; give at least one character, as in "def "')
    from pipemare_exp.experiment.evaluate import restore
    from pipemare_exp.experiment.runs.folder import open_run

    chosen = open_run(args.run, args.runs)
    loop = restore(chosen, args.checkpoint, other_data=args.other_data)
    task: Any = loop.task
    if not hasattr(task, "sample"):
        raise UserError(f"{chosen.path} is a run of task {task.name}, which writes no text")
    prompt = args.prompt.encode("utf-8", "surrogateescape")  # as the shell gave it
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")  # as all files of text are, whatever the locale
    with loop.engine.evaluation() as model:
        for seed in range(args.seed, args.seed + args.samples):
            if args.samples > 1:
                print(f"--- seed {seed}")
            text = task.sample(model, prompt, args.tokens, args.temperature, args.top_k, seed)
            print(_shown(prompt + text), flush=True)
    return 0


def _shown(text: bytes) -> str:
    """Text for a terminal, a mark in place of bytes of no character and of characters that a terminal would obey."""
    return "".join(c if c in "\n\t" or c.isprintable() else "\ufffd" for c in text.decode("utf-8", "replace"))
