"""`pipemare train`: one run from the command line."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any, TextIO

from pipemare_exp.environment import started_by_torchrun

HELP = "Train one run, go on with an interrupted one, or say that it is done."
INTERMIXED = True

EXAMPLES = """examples:
  pipemare train task=digits method=pipemare
  pipemare train task=digits method=gpipe seed=3 tracking=none
  pipemare train task=cifar10 method=pipemare scale=laptop data.root=DIR
  pipemare train task=digits method=t1_t2 pipeline.stages=20 optimizer.rate=0.02
  pipemare train task=digits method=pipemare --cfg        print the resolved configuration, train nothing

A run is named by its configuration: the same command goes on where an interrupted run stopped, and does
nothing where it is finished. Groups (name=file): experiment, task, data, model, method, pipeline, optimizer,
schedule, scale, tracking. Everything that --cfg prints can be set (name.name=value).
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.add_argument("overrides", nargs="*", metavar="NAME=VALUE", help="settings, in Hydra's grammar")
    parser.add_argument("--runs", metavar="DIR", help="folder of runs (default: PIPEMARE_RUNS, else results/runs)")
    parser.add_argument("--cfg", action="store_true", help="print the resolved configuration and its name only")
    parser.add_argument("-q", "--quiet", action="store_true", help="print errors only; RUN/train.log has the rest")
    parser.add_argument("--json", action="store_true", help="print the result (or configuration) as JSON only")


def run(args: argparse.Namespace) -> int:
    from pipemare_exp.experiment.config.identity import run_name
    from pipemare_exp.experiment.config.load import load, to_mapping, to_yaml

    cfg = load(args.overrides)  # before torch is imported: a typing mistake is told at once
    if cfg.engine.name == "runtime" and not args.cfg:
        return _run_ranks(args, cfg)
    from pipemare_exp.experiment.training import assemble
    from pipemare_exp.experiment.training import session as train

    if args.cfg:
        resolved = assemble.prepare(cfg).cfg
        if args.json:
            print(json.dumps(to_mapping(resolved), indent=2))
        else:
            print(f"# {run_name(resolved)}\n{to_yaml(resolved)}", end="")
        return 0
    result = train.train(cfg, args.overrides, runs=args.runs, out=_out(args))
    _print_result(args, result)
    return result.exit_code


def _out(args: argparse.Namespace) -> TextIO:
    """Where messages and progress go."""
    if args.quiet:
        return open(os.devnull, "w", encoding="utf-8")
    return sys.stderr if args.json else sys.stdout


def _print_result(args: argparse.Namespace, result: Any) -> None:
    """What is printed of the outcome beside the training's own messages."""
    if args.json:
        print(json.dumps({"run": str(result.run.path), **result.summary}, indent=2))
    if args.quiet and result.exit_code:
        step, log = result.summary["step"], result.run.path / "train.log"
        print(f"pipemare: {result.outcome} at step {step}; {log} tells more", file=sys.stderr)


def _command_line(args: argparse.Namespace) -> list[str]:
    line = ["train", *args.overrides]
    line += ["--runs", args.runs] if args.runs else []
    line += ["--quiet"] if args.quiet else []
    return [*line, "--json"] if args.json else line


def _run_ranks(args: argparse.Namespace, cfg: Any) -> int:
    """The runtime: this process is one rank where torchrun started it, else it starts torchrun."""
    if not started_by_torchrun():
        from pipemare_exp.experiment.runtime import launch as runtime_launch

        return runtime_launch.launch(cfg, _command_line(args))
    from pipemare_exp.experiment.runtime import worker as runtime_worker

    code, result = runtime_worker.work(cfg, args.overrides, args.runs, _out(args))
    if result is not None:
        _print_result(args, result)
        runtime_worker.record_exit(code)
    if code == 1:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # threads of the process group may wait for a peer that will never answer
    return code
