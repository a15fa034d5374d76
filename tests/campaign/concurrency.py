"""Two of everything on one folder, at the same time."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from random import Random

from pipemare_exp.experiment.runs.folder import find_runs
from tests.campaign.attempt import Outcome, judge
from tests.campaign.kills import SWEEP, Bench
from tests.campaign.processes import command, run, start
from tests.campaign.trainings import BOUND, difference, train, unfinished

WEIGHT = 2


def prepare(folder: Path) -> Bench:
    return Bench(folder / "undisturbed")


def attempt(bench: Bench, random: Random, folder: Path) -> Outcome:
    """Two or three commands on one folder of runs, begun within a second."""
    runs = folder / "runs"
    kind = random.choices(("trainings", "sweeps", "readers"), (4, 1, 3))[0]
    case = random.choice(("pipemare", "gpipe", "best"))
    lines: list[tuple[str, ...]]
    if kind == "sweeps":
        wanted = find_runs(bench.sweep())
        lines = [(*SWEEP, "--runs", str(runs))] * 2
    else:
        wanted = [bench.run(case)]
        if kind == "readers":
            shutil.copytree(wanted[0].path, runs / wanted[0].name)
        lines = [train(case, runs)] * random.randint(1, 2) if kind == "trainings" else []
        lines += random.choices(_readers(folder, runs, case), k=2)
    if kind == "readers":
        lines.append(lines[0])
    started = []
    for line in lines:
        started.append(start(command(*line)))
        time.sleep(random.choice((0.0, 0.05, 0.5)))
    what = " & ".join(f"pipemare {' '.join(line)}" for line in lines)
    outcomes = [judge(what, one.wait(BOUND)) for one in started]
    bad = next((one for one in outcomes if one.bad), None)
    if bad is not None:
        return bad
    if kind != "readers":
        again = judge(f"{what}; then once more", run(command(*lines[0]), BOUND))
        if again.kind != "equal":
            return again if again.bad else Outcome(again.what, "exit code", again.said)
    for left, right in zip(find_runs(runs), wanted, strict=True):
        if found := difference(left, right):
            return Outcome(what, "silent", found)
    left = unfinished(folder)
    return Outcome(what, "left behind" if left else "equal", str(left), tried=len(lines))


def _readers(folder: Path, runs: Path, case: str) -> list[tuple[str, ...]]:
    """Commands that may stand beside a training."""
    where = ("--runs", str(runs))
    return [
        ("runs", "--json", *where),
        ("compare", "digits", *where),
        ("figures", "--rows", str(folder / "rows"), *where),
        ("figures", "table1", "--out", str(folder / "figures")),
        ("report", "table1", *where, "--out", str(folder / "page.html")),
        ("track", *where, "--uri", f"sqlite:///{folder}/mlflow.db"),
        ("sweep", "ablation_digits", "--dry-run", *where),
    ]
