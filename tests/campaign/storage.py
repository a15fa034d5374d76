"""Storage that fails: full, with a largest file, read-only, slow, without locks, without fsync.

A training on such a folder ends with a message or finishes; once the storage works, the same command goes on, and the
result is the undisturbed one.
"""

from __future__ import annotations

import builtins
import errno
import fcntl
import os
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from tests.campaign.attempt import Outcome, judge
from tests.campaign.processes import command, run
from tests.campaign.trainings import BOUND, CASES, Undisturbed, difference, the_run, train, unfinished

WEIGHT = 3
CALLS = 60  # writes of a short training, at most


def prepare(folder: Path) -> Undisturbed:
    return Undisturbed(folder / "undisturbed")


def attempt(bench: Undisturbed, random: Random, folder: Path) -> Outcome:
    """A training on bad storage, then on good."""
    case = random.choice(list(CASES))
    wanted, line = bench.run(case), train(case, folder / "runs")
    name = random.choice(list(FAULTS))
    setup, how = FAULTS[name](random, folder)
    what = f"{how}: pipemare {' '.join(line)}"
    first = judge(what, run(command(*line), BOUND, setup=setup))
    if first.bad:
        return first
    if first.kind == "detected" and name in HARMLESS:
        return Outcome(what, "exit code", f"it should train all the same\n{first.said}")
    second = judge(f"{what}; then undisturbed", run(command(*line), BOUND))
    if second.kind != "equal":
        return second if second.bad else Outcome(second.what, "exit code", second.said)
    if found := difference(the_run(folder / "runs"), wanted):
        return Outcome(what, "silent", found)
    if left := unfinished(folder):
        return Outcome(what, "left behind", str(left))
    return Outcome(what, first.kind)


def _largest_file(random: Random, folder: Path) -> tuple[Callable[[], None], str]:
    size = random.choice((0, random.randint(1, 3000), random.randint(3000, 300_000)))

    def setup() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # as Python has it
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    return setup, f"largest file of {size} bytes"


def _few_files(random: Random, folder: Path) -> tuple[Callable[[], None], str]:
    number = random.randint(20, 40)
    return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (number, number)), f"{number} open files at most"


def _failing(code: int, names: tuple[str, ...], how: str, once: bool = False) -> Callable[[Random, Path], Any]:
    """From some call of `names` on (`once`: at that call alone), in the folder of runs, the error `code`."""

    def fault(random: Random, folder: Path) -> tuple[Callable[[], None], str]:
        first = random.randint(1, CALLS)
        left = [first]

        def failing(module: Any, name: str) -> None:
            function = getattr(module, name)

            def call(*args: Any, **kwargs: Any) -> Any:
                reads = name == "open" and "r" in str(kwargs.get("mode", args[1] if len(args) > 1 else "r"))
                ours = name in ("fsync", "flock") or str(folder) in str(args[0])
                if ours and not reads:
                    left[0] -= 1
                    if left[0] == 0 or (left[0] < 0 and not once):
                        raise OSError(
                            code, os.strerror(code), str(args[0]) if isinstance(args[0], str | Path) else None
                        )
                return function(*args, **kwargs)

            setattr(module, name, call)

        def setup() -> None:
            for name in names:
                for module in (builtins,) if name == "open" else (fcntl,) if name == "flock" else (os,):
                    failing(module, name)

        return setup, f"{how} {'at' if once else 'from'} call {first} of {', '.join(names)}"

    return fault


def _slow(random: Random, folder: Path) -> tuple[Callable[[], None], str]:
    seconds = random.choice((0.01, 0.1, 0.3))

    def setup() -> None:
        for name in ("fsync", "replace"):
            function = getattr(os, name)
            setattr(os, name, lambda *args, _function=function: (time.sleep(seconds), _function(*args))[1])

    return setup, f"{seconds} s for every fsync and rename"


def _without(module: Any, name: str, code: int) -> Callable[[Random, Path], Any]:
    def fault(random: Random, folder: Path) -> tuple[Callable[[], None], str]:
        def missing(*args: Any) -> Any:
            raise OSError(code, os.strerror(code))

        return lambda: setattr(module, name, missing), f"{name}: {os.strerror(code)}"

    return fault


def _no_folder_sync(random: Random, folder: Path) -> tuple[Callable[[], None], str]:
    fsync = os.fsync

    def refuse(descriptor: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        fsync(descriptor)

    return lambda: setattr(os, "fsync", refuse), "no fsync of folders"


FAULTS: dict[str, Callable[[Random, Path], tuple[Callable[[], None], str]]] = {
    "largest file": _largest_file,
    "few files": _few_files,
    "full": _failing(errno.ENOSPC, ("open", "fsync", "mkdir", "replace"), "no space"),
    "full once": _failing(errno.ENOSPC, ("open", "fsync", "mkdir", "replace"), "no space", once=True),
    "quota": _failing(errno.EDQUOT, ("open", "fsync", "mkdir"), "quota exceeded"),
    "read-only": _failing(errno.EROFS, ("open", "mkdir", "replace", "unlink"), "read-only"),
    "broken disk": _failing(errno.EIO, ("open", "fsync", "replace"), "I/O error"),
    "stale": _failing(errno.ESTALE, ("open", "fsync", "replace"), "stale handle", once=True),
    "no locks": _without(fcntl, "flock", errno.ENOLCK),
    "no locks at all": _without(fcntl, "flock", errno.ENOSYS),
    "no folder sync": _no_folder_sync,
    "no sync": _without(os, "fsync", errno.EINVAL),
    "slow": _slow,
}
HARMLESS = ("no locks", "no locks at all", "no folder sync", "slow")
"""Faults with which a training must get through."""
