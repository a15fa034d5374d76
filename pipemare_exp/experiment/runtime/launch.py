"""`pipemare train engine=runtime engine.ranks=R`: starts torchrun, and ends with one message whatever happens to it.

torchrun starts the ranks, and again after a failure if `engine.max_restarts` says so. This process passes signals on,
keeps torchrun's own long reports out of sight (said.py), gives up ranks that do not begin, do not meet or do not end,
and leaves no process behind: torchrun ends with it, and every rank with torchrun.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipemare_exp import tied
from pipemare_exp.environment import FAILURES
from pipemare_exp.errors import UserError
from pipemare_exp.experiment.config.schema import Config
from pipemare_exp.experiment.runtime.said import Said
from pipemare_exp.experiment.training.interrupts import on_signals
from pipemare_exp.leftovers import work_folder

GRACE = 6.0
"""Seconds from a failure until ranks that are still there are killed."""

LIMITS = {"begun": 180.0, "joined": 330.0}
"""Seconds from the start until every rank has begun and until it has met the others: torchrun's own start, then the
ranks' imports and their own limit (worker.MEETING)."""

PATIENCE = 30.0
"""Seconds after which a user is told that ranks have not begun, with what torchrun has said."""

LOOPBACK = {"address": "127.0.0.1", "interface": "lo"}
"""Ranks of one machine meet on it and talk over it: nothing depends on how the machine's name resolves."""


def launch(cfg: Config, argv: Sequence[str]) -> int:
    """Run `pipemare ARGV` on `engine.ranks` processes; returns the exit code."""
    if cfg.engine.ranks is None:
        raise UserError(
            "engine=runtime needs engine.ranks=R, the number of processes (or start it by torchrun: torchrun "
            "--nproc-per-node R -m pipemare_exp train ... engine=runtime)"
        )
    if sys.platform != "linux":
        raise UserError("engine=runtime needs Linux, on which processes can be tied to the one that started them")
    restarts = cfg.engine.max_restarts or 0
    cores = len(os.sched_getaffinity(0))
    if cfg.engine.ranks > cores and "--quiet" not in argv:
        shared = f"{cfg.engine.ranks} ranks share {cores} core{'s' if cores > 1 else ''}"
        print(f"pipemare: note: {shared}; `pipemare plan --ranks` plans them over machines", file=sys.stderr)
    with work_folder(Path(tempfile.gettempdir()), "pipemare-job-") as folder:
        command = tied.command(
            "torch.distributed.run", "--standalone", "--local-addr", LOOPBACK["address"],
            "--nproc-per-node", str(cfg.engine.ranks), "--max-restarts", str(restarts), "--log-dir", str(folder),
            "-m", "pipemare_exp", *argv,
        )  # fmt: skip
        defaults = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": LOOPBACK["interface"]}
        process = subprocess.Popen(
            command, env={**defaults, **os.environ, FAILURES: str(folder)}, stderr=subprocess.PIPE, text=True,
            errors="replace", start_new_session=True,
        )  # fmt: skip
        assert process.stderr is not None
        return _Job(process, folder, cfg.engine.ranks, restarts, Said(process.stderr, folder / "log.txt")).run()


class _Job:
    """torchrun and its ranks, from the start to their end. `folder` is where ranks leave word of how far they are."""

    def __init__(self, process: subprocess.Popen, folder: Path, ranks: int, restarts: int, said: Said) -> None:
        self.process, self.folder, self.ranks, self.restarts, self.said = process, folder, ranks, restarts, said
        self.signal: int | None = None
        """The last one that was passed on."""
        self.at_once = False
        """A second SIGINT has come."""
        self.given_up = ""

    def run(self) -> int:
        """Wait for the end of all; returns the exit code."""
        before = on_signals(self._pass_on)
        try:
            self._wait()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        self.said.wait(5.0)
        return self._conclude()

    def _pass_on(self, number: int, frame: Any) -> None:
        if self.signal is not None and number == signal.SIGINT:
            self.at_once = True
            self.process.kill()  # and with it every rank
            return
        self.signal = number
        # torchrun does not know all of them
        self.process.send_signal(number if number == signal.SIGINT else signal.SIGTERM)

    def _wait(self) -> None:
        began = time.monotonic()
        failed_since, patient = None, True
        while self.process.poll() is None:
            time.sleep(0.2)
            now = time.monotonic()
            if self.restarts == 0 and failed_since is None and any(self.folder.glob("rank-*.json")):
                failed_since = now
            if failed_since is not None and now - failed_since > GRACE:
                self.process.kill()  # and with it every rank, also one that is stopped and hears no other signal
            if patient and now - began > PATIENCE:
                patient = False
                self._tell_of_a_slow_start(now - began)
            for what, limit in LIMITS.items():
                if now - began > limit and not self.given_up and self._missing(what):
                    self._give_up(what, limit)

    def _missing(self, what: str) -> list[int]:
        """The ranks that have not come so far."""
        return [rank for rank in range(self.ranks) if not (self.folder / f"{what}-{rank}").exists()]

    def _tell_of_a_slow_start(self, seconds: float) -> None:
        if missing := self._missing("begun"):
            print(f"pipemare: {_ranks(missing)} not begun after {seconds:.0f} s", file=sys.stderr)
            for line in self.said.kept[-5:]:
                print(f"  torchrun: {line}", file=sys.stderr)

    def _give_up(self, what: str, limit: float) -> None:
        does = {"begun": "not begun", "joined": "not met the others"}[what]
        self.given_up = f"{_ranks(self._missing(what))} {does} within {limit:.0f} s of the start"
        self.process.kill()

    def _conclude(self) -> int:
        if self.at_once:
            print("pipemare: interrupted at once; the same command goes on from the last checkpoint", file=sys.stderr)
            return 128 + signal.SIGINT
        code, ended = self.process.returncode, self.folder / "exit.json"
        if ended.exists():
            return json.loads(ended.read_text(encoding="utf-8"))["code"]
        if code == 0:
            return code
        if self.signal is not None and not self.given_up:
            return 128 + self.signal
        self._tell_of_the_failure()
        return 1

    def _tell_of_the_failure(self) -> None:
        told = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(self.folder.glob("rank-*.json"))]
        if not any(each["said"] for each in told):
            why = self.given_up or (told[0]["text"] if told else "the ranks ended before they could say why")
            print(f"pipemare: failed: {why}", file=sys.stderr)
        if not told or self._missing("joined"):
            for line in self.said.ended():
                print(f"pipemare: torchrun: {line}", file=sys.stderr)
            if last := self.said.last():
                print("pipemare: the last lines of the ranks and of torchrun:", file=sys.stderr)
                print("".join(f"  {line}\n" for line in last), end="", file=sys.stderr)
        kept = self.folder.parent / f"{self.folder.name.replace('job', 'failed')}.log"
        shutil.copyfile(self.said.log, kept)
        print(f"pipemare: the ranks' messages are in {kept}", file=sys.stderr)


def _ranks(missing: Sequence[int]) -> str:
    return f"rank {missing[0]} has" if len(missing) == 1 else f"ranks {', '.join(map(str, missing))} have"
