"""With how many threads does a training compute, where nobody said?

With as many as there are free cores. Small operations on two threads take twenty times as long as on one as soon as
another process wants the second core, because every operation waits for its slowest thread.
"""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from pipemare_exp.environment import THREADS

TORCHS = torch.get_num_threads()
"""What torch takes by itself, before anybody sets another number: it leaves out the second thread of a core."""

SHORTEST = 0.1
"""Seconds over which the other processes are watched at least: the system counts in hundredths of a second."""


@dataclass(frozen=True)
class Choice:
    """How many threads, and why."""

    count: int
    why: str


def choose(cores: int, busy: float, quota: float | None = None) -> int:
    """The free ones of `cores`, at least 1.

    `cores`: those that this process may run on; `busy`: how many of them other processes keep busy, on average;
    `quota`: how many cores' time the control group may use (None: no limit).
    """
    free = cores - round(busy)
    return max(1, free if quota is None else min(free, math.floor(quota)))


class Meter:
    """Watches what other processes do on our cores from its making on, beside whatever this process does itself."""

    def __init__(self) -> None:
        self.cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else _all_cores()
        self._before = self._now()

    def busy(self) -> float:
        """How many of our cores other processes have kept busy, on average; the load of the last minute elsewhere
        than on Linux."""
        if self._before is None:
            return os.getloadavg()[0]
        left = SHORTEST - (time.monotonic() - self._before[0])
        if left > 0:
            time.sleep(left)
        after = self._now()
        assert after is not None
        seconds, all_of_us, own = (b - a for a, b in zip(self._before, after, strict=True))
        return min(max((all_of_us - own) / seconds, 0.0), float(len(self.cores)))

    def _now(self) -> tuple[float, float, float] | None:
        """(time, processor time that our cores have spent, of that this process's), in seconds; None: not known."""
        try:
            text = Path("/proc/stat").read_text(encoding="utf-8")
        except OSError:
            return None
        return time.monotonic(), spent(text, self.cores) / os.sysconf("SC_CLK_TCK"), time.process_time()


def spent(stat: str, cores: list[int]) -> int:
    """Ticks in which `cores` were not idle, by /proc/stat's text."""
    names = {f"cpu{core}" for core in cores}
    lines = [line.split() for line in stat.splitlines() if line.startswith("cpu")]
    # user nice system idle iowait irq softirq steal; what follows is counted in user and nice already.
    return sum(sum(map(int, [*line[1:4], *line[6:9]])) for line in lines if line[0] in names)


def quota(groups: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> float | None:
    """How many cores' time the tightest of this process's control groups allows; None: no limit, or not Linux."""
    try:
        lines = own.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    found = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        top = groups / "cpu" if controllers else groups
        place = top / path.lstrip("/")
        for folder in (place, *place.parents):
            found.append(_limit(folder))
            if folder == top:
                break
    return min((limit for limit in found if limit is not None), default=None)


def _limit(folder: Path) -> float | None:
    try:
        if (folder / "cpu.max").exists():
            most, period = (folder / "cpu.max").read_text(encoding="utf-8").split()
        else:
            most = (folder / "cpu.cfs_quota_us").read_text(encoding="utf-8").strip()
            period = (folder / "cpu.cfs_period_us").read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return None
    return None if most in ("max", "-1") else int(most) / int(period)


def settle(asked: int | None, meter: Meter, before: int | None) -> Choice:
    """Set torch's threads, and say why so many.

    `asked` (threads=) wins, then the environment's variables that torch heeds; then a run that goes on takes as many
    as it had (`before`), so that its sums add up in the same order; else the free cores decide.
    """
    choice = _choice(asked, meter, before)
    torch.set_num_threads(choice.count)
    return choice


def _choice(asked: int | None, meter: Meter, before: int | None) -> Choice:
    if asked is not None:
        return Choice(asked, "threads=")
    for name in THREADS:
        if os.environ.get(name):
            return Choice(torch.get_num_threads(), name)
    cores, limit = min(len(meter.cores), TORCHS), quota()
    if before is not None and before <= cores:
        return Choice(before, "as before")
    busy = meter.busy()
    why = f"of {cores} cores, {round(busy)} of them busy with other work"
    return Choice(choose(cores, busy, limit), why if limit is None else f"{why}, {limit:g} allowed")


def _all_cores() -> list[int]:
    return list(range(os.cpu_count() or 1))
