"""`pipemare sweep`: run a study, or see how far it is."""

from __future__ import annotations

import argparse
import json
import os
import shlex
from argparse import ArgumentTypeError
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from pipemare_exp.arguments import whole
from pipemare_exp.data import TASKS
from pipemare_exp.errors import UserError, suggest
from pipemare_exp.experiment.config.schema import SCALES
from pipemare_exp.experiment.runs.folder import runs_root
from pipemare_exp.experiment.sweep import fork_server, study_file
from pipemare_exp.experiment.sweep.study import Cell, Study, expand
from pipemare_exp.settings import MOST_PARTS

if TYPE_CHECKING:
    from pipemare_exp.experiment.sweep.plan import Planned

HELP = "Run a study: all trainings of one file in sweeps/, going on where an earlier sweep was stopped."
INTERMIXED = True

EXAMPLES = """examples:
  pipemare sweep --list                                     the studies, and where they run
  pipemare sweep ablation_digits --dry-run                  its cells: done, running, diverged, failed, missing
  pipemare sweep ablation_digits jobs=2                     two trainings side by side, one thread each
  pipemare sweep ablation scale=demo                        on every task that the study has at that scale
  pipemare sweep ablation hogwild recompute task=digits     three studies; what they share is trained once
  pipemare sweep ablation_cifar10 scale=laptop launcher=joblib data.root=DIR
  pipemare sweep stages_cifar10 scale=paper launcher=submitit_slurm launcher.partition=gpu launcher.timeout_min=600
  pipemare sweep ablation_digits seeds=[3,4] epochs=10      other seeds; any setting of `pipemare train`, for all cells

names: STUDY stands for all its tasks at the scale, STUDY_TASK (or STUDY task=TASK) for one.
words: scale=demo|laptop|paper  task=TASK  seeds=COUNT or [LIST]  jobs=N (with no launcher: fork; not on Linux: joblib)
       launcher=basic|fork|joblib|submitit_local|submitit_slurm  launcher.NAME=VALUE (a setting of that launcher)
       and NAME=VALUE as in `pipemare train`.
A cell is the run that `pipemare train` with the same settings makes. Start the command again at any time: it trains
what is missing or interrupted only. A cell that failed does not stop the others, is shown at the end (exit code 1),
and is tried again with --retry-failed. Ctrl-C leaves every cell resumable; a signal to one training ends that one.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `pipemare sweep`."""
    parser.epilog = EXAMPLES
    parser.add_argument("words", nargs="*", metavar="STUDY|NAME=VALUE", help="studies and settings")
    parser.add_argument("--list", action="store_true", help="list the studies and leave")
    parser.add_argument("--dry-run", action="store_true", help="show the cells and the time left, train nothing")
    parser.add_argument("--retry-failed", action="store_true", help="train failed cells too")
    parser.add_argument("--runs", metavar="DIR", help="folder of runs (default: PIPEMARE_RUNS, else results/runs)")
    parser.add_argument("-q", "--quiet", action="store_true", help="print only which cells failed")
    parser.add_argument("--json", action="store_true", help="with --dry-run or --list: print JSON only")


def run(args: argparse.Namespace) -> int:
    """0: all cells came to a result; 1: some failed or were interrupted; 128 + signal: stopped."""
    if args.list:
        return _list(args.json)
    names, own, extra = _sort(args.words)
    if not names:
        raise UserError(f"which study? {', '.join(study_file.names())}; `pipemare sweep --list` describes them")
    if args.json and not args.dry_run:
        raise UserError("--json goes with --dry-run or --list; the runs' own results are in `pipemare runs --json`")
    cells, studies = _cells(names, own, extra)
    root = runs_root(args.runs)
    launcher, jobs, options = _launcher(own)
    if launcher == "fork" and not args.dry_run:
        fork_server.begin()  # it imports while the cells are planned here
    from pipemare_exp.experiment.sweep import plan as sweep_plan  # imports torch

    planned = sweep_plan.plan(cells, root)
    if args.dry_run:
        return _dry_run(planned, jobs, args.json)
    code = train(planned, root, launcher, options, args.retry_failed, args.quiet)
    if code == 1 and any(one.state == "failed" for one in planned):
        print("the same command with --retry-failed trains the failed ones again")
    figures = [f"{figure}_{task}" for study, task in studies for figure in study.figures]
    if code == 0 and figures and not args.quiet:
        print(f"figures of these runs: pipemare figures {' '.join(dict.fromkeys(figures))}")
    return code


def _sort(words: Sequence[str]) -> tuple[list[str], dict[str, str], list[str]]:
    """(study names, this command's own settings, overrides of all cells)."""
    names, own, extra = [], {}, []
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            names.append(word)
        elif key in ("scale", "task", "seeds", "jobs", "launcher") or key.startswith("launcher."):
            own[key] = value
        elif key in ("method", "seed"):
            other = {"method": "the study says it", "seed": "use seeds="}
            raise UserError(f'"{word}" has no place in a sweep: {other[key]}; one run is `pipemare train {word}`')
        else:
            extra.append(word)
    return names, own, extra


def _cells(
    names: Sequence[str], own: dict[str, str], extra: Sequence[str]
) -> tuple[list[Cell], list[tuple[Study, str]]]:
    """The cells of all studies in order, and the (study, task) pairs that they come from."""
    scale, wanted = own.get("scale"), own.get("task")
    for value, allowed, what in ((scale, SCALES, "scale"), (wanted, TASKS, "task")):
        if value is not None and value not in allowed:
            raise UserError(f"{what}={value}; allowed: {', '.join(allowed)}{suggest(value, allowed)}")
    seeds = None if "seeds" not in own else _seeds(own["seeds"])
    cells: list[Cell] = []
    pairs = []
    for name in names:
        study, task = study_file.find(name)
        if task and wanted and task != wanted:
            raise UserError(f"{name} is of task {task}, but task={wanted}; write {study.name}_{wanted}")
        task = task or wanted
        scales = study.scales(task)
        if not scales:
            everywhere = sorted({one for places in study.places.values() for one in places})
            raise UserError(f"study {study.name} does not run on task {task}; it has {', '.join(everywhere)}")
        chosen = scale or scales[0]
        for one in [task] if task else list(study.places.get(chosen, {})) or [""]:
            cells += expand(study, chosen, one, seeds, extra)
            pairs.append((study, one))
    return cells, pairs


def _seeds(text: str) -> list[int]:
    try:
        if text.startswith("["):
            return [whole(low=0)(part) for part in text.strip("[]").split(",")]
        return list(range(whole(high=MOST_PARTS)(text)))
    except ArgumentTypeError as error:
        raise UserError(f"seeds={error}; write a number of seeds, such as 3, or a list, such as [3,4]") from None


def _launcher(own: dict[str, str]) -> tuple[str, int, dict[str, str]]:
    """(launcher, trainings at a time as far as known, the launcher's settings)."""
    side_by_side = ("fork", "joblib") if fork_server.AVAILABLE else ("joblib",)
    options = {key.removeprefix("launcher."): value for key, value in own.items() if key.startswith("launcher.")}
    launcher = own.get("launcher", side_by_side[0] if "jobs" in own else "basic")
    jobs = own.get("jobs", options.get("n_jobs"))
    try:
        whole(high=MOST_PARTS)("1" if jobs is None else jobs)
    except ArgumentTypeError as error:
        raise UserError(f"jobs={error}: it is the number of trainings side by side") from None
    if jobs is not None and launcher not in side_by_side:
        have = " and ".join(side_by_side)
        raise UserError(f"jobs={jobs} with launcher={launcher}: only {have} have it; leave out one of the two")
    if launcher in side_by_side:
        options["n_jobs"] = jobs or str(len(os.sched_getaffinity(0)))
    return launcher, int(options.get("n_jobs", 1)), options


def _list(as_json: bool) -> int:
    studies = [study_file.load(name) for name in study_file.names()]
    if as_json:
        print(json.dumps([
            {
                "study": study.name,
                "about": study.about,
                "figures": list(study.figures),
                "cells": {
                    scale: {task: len(expand(study, scale, task)) for task in study.places[scale]}
                    for scale in study.scales()
                },
            }
            for study in studies
        ], indent=2))  # fmt: skip
        return 0
    for study in studies:
        print(f"{study.name}: {study.about}")
        for scale in study.scales():
            counts = [f"{task} {len(expand(study, scale, task))}" for task in study.places[scale]]
            print(f"    scale={scale}: {', '.join(counts)} cells")
        if study.figures:
            print(f"    figures: {', '.join(study.figures)}")
    print("\nSTUDY_TASK names one task of a study: `pipemare sweep ablation_digits`.")
    return 0


def _dry_run(planned: Sequence[Planned], jobs: int, as_json: bool) -> int:
    from pipemare_exp.experiment.sweep import plan as sweep_plan
    from pipemare_exp.experiment.sweep.display import clock, describe

    if as_json:
        left = sweep_plan.seconds_left(planned, jobs)
        print(json.dumps({"cells": sweep_plan.as_json(planned), "seconds_left": left}, indent=2))
        return 0
    width = max(len(one.cell.title) for one in planned)
    for one in planned:
        state = one.state
        print(f"{one.cell.title:<{width}}  {describe(one, state)}")
    print(_summary(planned))
    left = sweep_plan.seconds_left(planned, jobs)
    print(f"time left: {clock(left)}" + ("" if left is not None else " (no cell has finished yet)"))
    return 0


def _summary(planned: Sequence[Planned]) -> str:
    from pipemare_exp.experiment.sweep.plan import STATES

    counts = Counter(one.state for one in planned)
    return f"{len(planned)} cells: " + ", ".join(f"{counts[state]} {state}" for state in STATES if counts[state])


def train(
    planned: Sequence[Planned],
    root: Path,
    launcher: str,
    options: Mapping[str, str],
    retry_failed: bool = False,
    quiet: bool = False,
) -> int:
    """Train what is missing or interrupted (`retry_failed`: and what failed), with a display unless `quiet`. Returns
    `run`'s code."""
    from pipemare_exp.experiment.sweep.display import Display
    from pipemare_exp.experiment.sweep.plan import TO_DO
    from pipemare_exp.experiment.sweep.run import Sweep

    for one in planned if retry_failed else ():
        if one.run is not None and one.state == "failed":
            one.run.set_status("interrupted", one.step)  # goes on from its last checkpoint
    sweep = Sweep(planned, root, launcher, options)
    stopped = None
    if any(one.state in (*TO_DO, "running") for one in planned):
        if not quiet:
            print(_summary(planned), flush=True)
        with nullcontext() if quiet else Display(planned, int(options.get("n_jobs", 1))):
            stopped = sweep.run()
    if not quiet:
        print(_summary(planned))
    for one in planned:
        if one.state == "failed":
            print(f"FAILED {one.cell.title}: {one.error}")
            print(f"  {shlex.join(['pipemare', 'train', *one.cell.overrides])}")
    if stopped is not None:
        print("stopped; every cell keeps its checkpoint, the same command goes on from there")
        return 128 + stopped
    left = [one for one in planned if one.state in TO_DO]
    if left:
        print(f"interrupted: {', '.join(one.cell.title for one in left)}; the same command goes on with them")
    return 1 if left or any(one.state == "failed" for one in planned) else 0
