"""Foreign environments: locales, homes that are not there, clusters' variables, jumping clocks, limits.

A command in such an environment gives what it gives in a plain one, or says what is wrong with it.
"""

from __future__ import annotations

import os
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

from tests.campaign.attempt import Outcome, judge
from tests.campaign.files import _plain
from tests.campaign.processes import command, run
from tests.campaign.trainings import BOUND, Undisturbed, difference, the_run, train

WEIGHT = 2
CASES = ("pipemare", "gpipe", "translation")

VARIABLES: dict[str, tuple[str, ...]] = {
    "RANK": ("0", "3", "x"), "WORLD_SIZE": ("1", "8", ""), "LOCAL_RANK": ("0", "7"), "LOCAL_WORLD_SIZE": ("2",),
    "MASTER_ADDR": ("nowhere.invalid",), "MASTER_PORT": ("0", "99999"), "TORCHELASTIC_RUN_ID": ("none",),
    "SLURM_JOB_ID": ("17",), "SLURM_PROCID": ("3",), "SLURM_NTASKS": ("8",), "SLURM_LOCALID": ("1",),
    "OMPI_COMM_WORLD_RANK": ("2",), "PMI_RANK": ("1",), "PMI_SIZE": ("4",), "CUDA_VISIBLE_DEVICES": ("", "-1", "0,1"),
    "LC_ALL": ("C", "POSIX", "de_DE.UTF-8", "no_SUCH"), "LANG": ("", "tr_TR"), "LANGUAGE": ("xx",),
    "HOME": ("/nonexistent", "", "/dev/null"), "XDG_CACHE_HOME": ("/dev/null/x",), "TMPDIR": ("/nonexistent",
    "/dev/null", "/proc"),
    "TERM": ("dumb", "", "xterm-256color"), "COLUMNS": ("0", "1", "x", "-5", "99999999"), "LINES": ("x",),
    "NO_COLOR": ("1",),
    "FORCE_COLOR": ("1",), "OMP_NUM_THREADS": ("0", "x", "-1", "99999"), "MKL_NUM_THREADS": ("x",), "TZ": ("nowhere",
    "", ":x/../y"),
    "PIPEMARE_DATA": ("/nonexistent", "", "/dev/null"), "PIPEMARE_RUNS": ("/dev/null", ""),
    "PIPEMARE_COMMIT": ("x" * 300, ""),
    "HYDRA_FULL_ERROR": ("1",), "MLFLOW_TRACKING_URI": ("http://127.0.0.1:9",), "MLFLOW_EXPERIMENT_NAME": ("other",),
    "MPLBACKEND": ("nope", "TkAgg"), "MPLCONFIGDIR": ("/dev/null",), "DISPLAY": (":77",), "EDITOR": ("",),
    "PATH": ("", "/nonexistent"),
    "GIT_DIR": ("/nonexistent",), "USER": ("", "é"), "LOGNAME": ("",), "PYTHONHASHSEED": ("7",),
    "http_proxy": ("http://127.0.0.1:9",),
}  # fmt: skip


def prepare(folder: Path) -> Undisturbed:
    return Undisturbed(folder / "undisturbed")


def attempt(bench: Undisturbed, random: Random, folder: Path) -> Outcome:
    """A training, or a command over one, in a strange environment."""
    variables = {name: random.choice(VARIABLES[name]) for name in random.sample(list(VARIABLES), random.randint(1, 5))}
    name = random.choice(list(LIMITS)) if random.random() < 0.5 else None
    limit, how = LIMITS[name](random) if name else (None, "")

    def setup() -> None:
        os.environ.update(variables)
        tempfile.tempdir = None
        time.tzset()
        if limit is not None:
            limit()

    case = random.choice(CASES)
    wanted = bench.run(case)
    runs = folder / "runs" if random.random() < 0.6 else wanted.path.parent
    line = train(case, runs) if runs != wanted.path.parent else random.choice((
        ("runs", "--runs", str(runs)), ("compare", wanted.name.split("-")[0], "--runs", str(runs)),
        ("eval", str(wanted.path), "--json"), ("plan", "--stages", "4"), ("figures", "--list", "--runs", str(runs)),
        ("data", "list"), ("report", "table1", "--runs", str(runs), "--out", str(folder / "page.html")),
    ))  # fmt: skip
    shown = " ".join(f"{key}={value!r}" for key, value in variables.items())
    what = f"{shown} {how} pipemare {' '.join(line)}"
    done = run(command(*line), BOUND, setup=setup)
    outcome = judge(what, done)
    if outcome.kind != "equal":
        return outcome
    if line[0] == "train" and (found := difference(the_run(runs), wanted)):
        return Outcome(what, "silent", found)
    if line[0] == "eval":
        plain = run(command(*line), BOUND)
        if _plain(done.out) != _plain(plain.out):
            return Outcome(what, "silent", f"{done.out}\nand without\n{plain.out}")
    return Outcome(what, "equal")


Limit = Callable[[Random], tuple[Callable[[], object], str]]


def _clock(random: Random) -> tuple[Callable[[], object], str]:
    """A clock that jumps, as one that is set by hand or by a server does."""
    jump = random.choice((-1e9, -3600.0, 3600.0, 1e9))

    def setup() -> None:
        ask, calls = time.time, [0]

        def jumping() -> float:
            calls[0] += 1
            return ask() + (jump if calls[0] % 3 == 0 else 0.0)

        time.time = jumping

    return setup, f"clock jumping by {jump:g} s:"


def _closed(random: Random) -> tuple[Callable[[], object], str]:
    return lambda: os.close(0), "standard input closed:"


def _umask(random: Random) -> tuple[Callable[[], object], str]:
    mask = random.choice((0, 0o077, 0o777))
    return lambda: os.umask(mask), f"umask {mask:o}:"


LIMITS: dict[str, Limit] = {
    "umask": _umask,
    "clock": _clock,
    "stdin": _closed,
    "stack": lambda random: (lambda: resource.setrlimit(resource.RLIMIT_STACK, (1 << 18, 1 << 18)), "small stack:"),
    "core": lambda random: (lambda: resource.setrlimit(resource.RLIMIT_CORE, (0, 0)), "no core files:"),
    "files": lambda random: (lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)), "64 open files at most:"),
    "nice": lambda random: (lambda: os.nice(19), "niced:"),
}
