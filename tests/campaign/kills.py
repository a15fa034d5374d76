"""Kills: at random moments, and at the moments that matter, which are the writes, syncs and renames.

A training or a sweep is killed up to three times and started again until it is through: the result is the undisturbed
one, and nothing of the killed processes is left. Commands that only write files are killed once and given again.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from random import Random

from pipemare_exp.experiment.runs.folder import find_runs
from tests.campaign.attempt import Outcome, judge
from tests.campaign.processes import command, run, start
from tests.campaign.trainings import BOUND, CASES, Undisturbed, difference, the_run, train, unfinished

WEIGHT = 6
WRITES = ("write", "fsync", "replace", "rename", "open")
# Moments of a short training at which something was written, at most.
MOMENTS = 60
SWEEP = ("sweep", "ablation_digits", "seeds=1", "max_steps=5", "epochs=1", "model.width=2", "tracking=none",
         "pipeline.microbatches=4", "checkpoint.every_steps=2")  # fmt: skip


class Bench(Undisturbed):
    """Undisturbed trainings, and an undisturbed sweep."""

    def sweep(self) -> Path:
        """Its folder of runs."""
        runs = self.folder / "sweep"
        if "sweep" not in self.seconds:
            done = run(command(*SWEEP, "--runs", str(runs)), BOUND)
            if done.code:
                raise RuntimeError(f"the sweep does not run undisturbed:\n{done.err}{done.out}")
            self.seconds["sweep"] = done.seconds
        return runs


def prepare(folder: Path) -> Bench:
    return Bench(folder / "undisturbed")


def attempt(bench: Bench, random: Random, folder: Path) -> Outcome:
    """Kills of one command."""
    kind = random.choices(("training", "sweep", "writer"), (12, 1, 3))[0]
    if kind == "sweep":
        return _sweep(bench, random, folder)
    return _training(bench, random, folder) if kind == "training" else _writer(bench, random, folder)


def at_write(number: int) -> Callable[[], None]:
    """What makes a process kill itself just before its `number`-th write, sync or rename in Python."""

    def setup() -> None:
        left = [number]

        def counted(function: Callable) -> Callable:
            def call(*args: object, **kwargs: object) -> object:
                left[0] -= 1
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return function(*args, **kwargs)

            return call

        for name in WRITES:
            setattr(os, name, counted(getattr(os, name)))

    return setup


def _disturbed(line: tuple[str, ...], random: Random, seconds: float) -> tuple[bool, str]:
    """Give a command and kill it; whether it was killed, and how."""
    if random.random() < 0.5:
        number = random.randint(1, MOMENTS)
        done = run(command(*line), BOUND, setup=at_write(number))
        return done.code == 128 + signal.SIGKILL, f"at write {number}"
    moment = random.random() * 1.1 * seconds
    started = start(command(*line))
    done = started.wait(moment)
    return done.hung, f"after {moment:.2f} s"


def _training(bench: Bench, random: Random, folder: Path) -> Outcome:
    case = random.choice(list(CASES))
    wanted, line, kills, how = bench.run(case), train(case, folder), 0, []
    for _ in range(random.randint(1, 3)):
        killed, when = _disturbed(line, random, bench.seconds[case])
        kills += killed
        how.append(when)
    what = f"SIGKILL {', '.join(how)}: pipemare {' '.join(line)}"
    done = run(command(*line), BOUND)
    outcome = judge(what, done)
    if outcome.kind != "equal":
        return outcome if outcome.bad else Outcome(what, "exit code", outcome.said)
    if found := difference(the_run(folder), wanted):
        return Outcome(what, "silent", f"{found}\n{outcome.said}", kills)
    if left := unfinished(folder):
        return Outcome(what, "left behind", str(left), kills)
    return Outcome(what, "equal", tried=kills)


def _sweep(bench: Bench, random: Random, folder: Path) -> Outcome:
    wanted = bench.sweep()
    line = (*SWEEP, "--runs", str(folder))
    killed, how = _disturbed(line, random, bench.seconds["sweep"])
    what = f"SIGKILL {how}: pipemare {' '.join(line)}"
    outcome = judge(what, run(command(*line), BOUND))
    if outcome.kind != "equal":
        return outcome if outcome.bad else Outcome(what, "exit code", outcome.said)
    pairs = zip(find_runs(folder), find_runs(wanted), strict=True)
    found = next((found for left, right in pairs if (found := difference(left, right))), None)
    if found:
        return Outcome(what, "silent", found, killed)
    left = unfinished(folder)
    return Outcome(what, "left behind" if left else "equal", str(left), killed)


def _writer(bench: Bench, random: Random, folder: Path) -> Outcome:
    """A command that reads runs and writes files: killed at a write, then given again, then all that read its files."""
    source = bench.run("pipemare")
    runs, out = folder / "runs", folder / "out"
    shutil.copytree(source.path, runs / source.name)
    line = random.choice((
        ("figures", "table1", "--runs", str(runs), "--out", str(out)),
        ("figures", "--rows", str(out), "--runs", str(runs)),
        ("report", "table1", "table2_digits", "--runs", str(runs), "--out", str(out / "page.html")),
    ))  # fmt: skip
    number = random.randint(1, 25)
    what = f"SIGKILL at write {number}: pipemare {' '.join(line)}"
    killed = run(command(*line), BOUND, setup=at_write(number)).code == 128 + signal.SIGKILL
    for again in (line, ("runs", "--json", "--runs", str(runs)), ("figures", "--list", "--runs", str(out))):
        if again[0] == "figures" and not out.is_dir():
            continue
        outcome = judge(f"{what}; then pipemare {' '.join(again)}", run(command(*again), BOUND))
        if outcome.kind != "equal":
            return outcome if outcome.bad else Outcome(what, "exit code", outcome.said, killed)
    return Outcome(what, "equal", tried=killed)
