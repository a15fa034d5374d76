"""SIGKILL to the processes of a runtime run, at random moments from its first to its last.

Half of the moments are drawn over the time of an undisturbed run, of which imports take much, and half over its steps.

    python -m tests.campaign.runtime_kills --seed 0 --moments 20

Whatever is killed (the command, torchrun, a rank, or all of them at once), nothing of the run may be left a minute
later, and the same command must go on to the very rows and weights of a run that nobody disturbed.

For a campaign: `reference = undisturbed(folder)` once, then `chain(random, reference, folder, kills)` as often as there
is time, each in an empty folder with its own `random.Random`. A chain kills one run `kills` times, with a fresh start
after each, then lets it through; it returns a `Kill` for each, of which `good` says whether all was as it must be. All
waits have an end: MINUTE for what must be gone, BOUND for a run. Runs end with the process that calls this.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch

from pipemare_exp import tied

MINUTE = 60.0
BOUND = 600.0
VICTIMS = ("command", "torchrun", "rank", "all")
RANKS, STEPS = 2, 120
SETTINGS = (
    "task=digits", "method=pipemare", "tracking=none", "pipeline.stages=4", "pipeline.microbatches=2",
    f"max_steps={STEPS}", "method.sync_warmup.epochs=null", "method.sync_warmup.steps=8", "threads=1",
    "checkpoint.every_steps=5", "engine=runtime", f"engine.ranks={RANKS}",
)  # fmt: skip


@dataclass(frozen=True)
class Reference:
    """A run that nobody disturbed: its rows without times, a digest of its weights, and how many seconds it took."""

    rows: tuple[str, ...]
    weights: str
    seconds: float


@dataclass(frozen=True)
class Kill:
    """Who was killed when, what was still there a minute later, and whether the run then became what it must be."""

    victim: str
    moment: float
    """Seconds from the start of the command."""
    steps: int
    """The last checkpoint's step at that moment; 0 before the first."""
    gone_after: float | None
    """Seconds until no process was left; None: some were after MINUTE."""
    equal: bool = False
    said: str = ""

    @property
    def good(self) -> bool:
        return self.equal and self.gone_after is not None


def undisturbed(folder: Path) -> Reference:
    """Train the run once in `folder`. RuntimeError where it does not end well."""
    began = time.monotonic()
    code, said = _through(folder)
    if code:
        raise RuntimeError(f"the undisturbed run ended with code {code}:\n{said}")
    return Reference(_rows(folder), _weights(folder), time.monotonic() - began)


def chain(random: Random, reference: Reference, folder: Path, kills: int) -> list[Kill]:
    """Kill a run in `folder` so many times, or until it is through, then let it through and compare it."""
    done: list[Kill] = []
    while len(done) < kills and not any(folder.glob("*/result.json")):
        done.append(_kill(random, reference, folder))
        if done[-1].gone_after is None:
            _end(folder)  # they would go on with the run that is compared
    code, said = _through(folder)
    equal = code == 0 and _rows(folder) == reference.rows and _weights(folder) == reference.weights
    last = "" if equal else "\n".join(said.strip().splitlines()[-5:])
    return [Kill(one.victim, one.moment, one.steps, one.gone_after, equal, last or one.said) for one in done]


def _kill(random: Random, reference: Reference, folder: Path) -> Kill:
    """Start the command and kill a victim at a moment, both drawn, or as soon as there is such a victim."""
    victim, by_step, where = random.choice(VICTIMS), random.random() < 0.5, random.random()
    process = _start(folder)
    began = time.monotonic()

    def ended() -> bool:
        return process.poll() is not None

    if by_step:
        _wait(lambda: ended() or _step(folder) >= where * STEPS, BOUND)
        _wait(ended, random.random())
    else:
        _wait(ended, where * reference.seconds)
    _wait(lambda: ended() or bool(_victims(victim, folder)), BOUND)
    moment, steps = time.monotonic() - began, _step(folder)
    found = _victims(victim, folder)
    if victim == "rank" and found:
        found = [random.choice(found)]
    for pid in found:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:  # it ended in this very moment
            continue
    killed = time.monotonic()
    gone = _wait(lambda: not _processes(folder), MINUTE)
    seconds = time.monotonic() - killed
    said = "" if gone else "; ".join(f"{pid}: {_line(pid)}" for pid in _processes(folder))
    if gone:
        process.communicate(timeout=MINUTE)
    return Kill(victim, moment, steps, seconds if gone else None, said=said)


def _step(folder: Path) -> int:
    """How far the ranks' checkpoints have come; 0 before the first."""
    return max((int(path.name.removeprefix("step-")) for path in folder.glob("*/checkpoints/step-*")), default=0)


def _start(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        tied.command("pipemare_exp", "train", *SETTINGS, "--runs", str(folder)),
        env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip


def _through(folder: Path) -> tuple[int, str]:
    """(exit code, what was said) of the command that nobody disturbs; -1 where it does not end."""
    process = _start(folder)
    try:
        said, _ = process.communicate(timeout=BOUND)
    except subprocess.TimeoutExpired:
        _end(folder)
        return -1, f"not through after {BOUND:.0f} s; {process.communicate()[0]}"
    return process.returncode, said


def _wait(what: Callable[[], Any], seconds: float) -> bool:
    """Whether `what` came true within so many seconds."""
    end = time.monotonic() + seconds
    while not what():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def _processes(folder: Path) -> list[int]:
    """All that train under `folder`: its path is a word of their command lines. A dead one that its parent has not
    asked after is none."""
    return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if str(folder) in _words(pid)]


def _words(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def _line(pid: int) -> str:
    return " ".join(_words(pid))[:120]


def _victims(victim: str, folder: Path) -> list[int]:
    found = _processes(folder)
    torchrun = [pid for pid in found if "torch.distributed.run" in _words(pid)]
    ranks = [pid for pid in found if "-u" in _words(pid)]  # as torchrun starts them
    command = [pid for pid in found if pid not in (*torchrun, *ranks)]
    return {"command": command, "torchrun": torchrun, "rank": ranks, "all": found}[victim]


def _end(folder: Path) -> None:
    for pid in _processes(folder):
        os.kill(pid, signal.SIGKILL)


def _rows(folder: Path) -> tuple[str, ...]:
    """Every row without its time; a half-written last line, as a reader of a live run may meet, is left out."""
    rows = []
    for path in folder.glob("*/metrics.jsonl"):
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                row = json.loads(line)
            except ValueError:
                continue
            rows.append(json.dumps({key: value for key, value in row.items() if key != "seconds"}, sort_keys=True))
    return tuple(rows)


def _weights(folder: Path) -> str:
    """A digest of the weights and statistics in the last checkpoint."""
    from pipemare_exp.experiment.runs.checkpoint import read

    (path,) = folder.glob("*/checkpoints/last.pt")
    digest = hashlib.sha256()
    for name, tensor in sorted(read(path)["emulator"]["model"].items()):
        digest.update(name.encode())
        digest.update(
            tensor.contiguous().view(torch.uint8).numpy().tobytes() if tensor.dim() else bytes(str(tensor), "ascii")
        )
    return digest.hexdigest()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.campaign.runtime_kills", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--moments", type=int, default=20, help="kills in all (20)")
    parser.add_argument("--chain", type=int, default=5, help="kills of one run before it is let through (5)")
    parser.add_argument("--minutes", type=float, default=60.0, help="begin no further chain after so long (60)")
    args = parser.parse_args()
    began, random, kills = time.monotonic(), Random(args.seed), []
    with tempfile.TemporaryDirectory(prefix="runtime-kills-") as name:
        reference = undisturbed(Path(name) / "undisturbed")
        print(f"undisturbed: {reference.seconds:.0f} s", flush=True)
        while len(kills) < args.moments and time.monotonic() - began < 60 * args.minutes:
            folder = Path(name) / f"chain-{len(kills)}"
            for kill in chain(random, reference, folder, min(args.chain, args.moments - len(kills))):
                kills.append(kill)
                gone = "LEFT BEHIND" if kill.gone_after is None else f"gone after {kill.gone_after:.1f} s"
                print(
                    f"{kill.victim:<9} killed after {kill.moment:5.1f} s, step {kill.steps:>2}: {gone}, "
                    f"{'equal' if kill.equal else 'DIFFERENT'} {kill.said}", flush=True,
                )  # fmt: skip
    bad = [kill for kill in kills if not kill.good]
    slowest = max((kill.gone_after for kill in kills if kill.gone_after is not None), default=0.0)
    print(f"{len(kills)} kills, {len(bad)} bad; slowest end {slowest:.1f} s; seed {args.seed}")
    return 1 if bad or not kills else 0


if __name__ == "__main__":
    sys.exit(main())
