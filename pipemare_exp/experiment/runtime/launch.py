"""`pipemare train engine=runtime engine.ranks=R`: starts torchrun, and ends with one message whatever happens to it.

torchrun starts the ranks, and again after a failure if `engine.max_restarts` says so. This process passes signals on,
keeps torchrun's own long reports out of sight (they are in a log file), gives up ranks that do not end by themselves,
and leaves no process behind: torchrun ends with it, and every rank with torchrun.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from pipemare_exp.environment import FAILURES
from pipemare_exp.errors import UserError
from pipemare_exp.experiment.config.schema import Config
from pipemare_exp.experiment.training.interrupts import on_signals

GRACE = 6.0
"""Seconds from a failure until ranks that are still there are killed."""

_AGENT = re.compile(r"^(\[?[WEI]\d{4} [\d:.]+ .*|Traceback \(most recent call last\):$)")
"""The first line of what torchrun says about a failure."""


def launch(cfg: Config, argv: Sequence[str]) -> int:
    """Run `pipemare ARGV` on `engine.ranks` processes; returns the exit code."""
    if cfg.engine.ranks is None:
        raise UserError(
            "engine=runtime needs engine.ranks=R, the number of processes (or start it by torchrun: torchrun "
            "--nproc-per-node R -m pipemare_exp train ... engine=runtime)"
        )
    if sys.platform != "linux":
        raise UserError("engine=runtime needs Linux, on which processes can be tied to the one that started them")
    folder = Path(tempfile.mkdtemp(prefix="pipemare-ranks-"))
    restarts = cfg.engine.max_restarts or 0
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(cfg.engine.ranks),
        "--max-restarts", str(restarts), "-m", "pipemare_exp", *argv,
    ]  # fmt: skip
    environment = {"OMP_NUM_THREADS": "1", **os.environ, FAILURES: str(folder)}
    with open(folder / "log.txt", "w", encoding="utf-8") as log:
        process = subprocess.Popen(
            command, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True, preexec_fn=_tie_to_us
        )
        code, stopped = _wait(process, log, folder, restarts)
    return _conclude(code, stopped, folder)


def _tie_to_us() -> None:
    """In the new process: be killed when the one that started it ends."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _wait(process: subprocess.Popen, log: TextIO, folder: Path, restarts: int) -> tuple[int, int | None]:
    """(torchrun's exit code, the signal that was passed on to it, if any)."""
    passed: list[int] = []

    def pass_on(number: int, frame: Any) -> None:
        passed.append(number)
        process.send_signal(number if number == signal.SIGINT else signal.SIGTERM)  # torchrun does not know all of them

    before = on_signals(pass_on)
    reader = threading.Thread(target=_read, args=(process.stderr, log), daemon=True)
    reader.start()
    failed_since = None
    try:
        while process.poll() is None:
            time.sleep(0.2)
            if restarts == 0 and failed_since is None and any(folder.glob("rank-*.json")):
                failed_since = time.monotonic()
            if failed_since is not None and time.monotonic() - failed_since > GRACE:
                process.kill()  # and with it every rank, also one that is stopped and hears no other signal
                failed_since = None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    reader.join(5.0)
    return process.returncode, passed[-1] if passed else None


def _read(source: TextIO, log: TextIO) -> None:
    """Everything into the log; to the user what came before torchrun's own report of a failure."""
    hidden = False
    for line in source:
        log.write(line)
        log.flush()
        hidden = hidden or bool(_AGENT.match(line))
        if not hidden or line.startswith("pipemare:"):
            sys.stderr.write(line)
            sys.stderr.flush()


def _conclude(code: int, stopped: int | None, folder: Path) -> int:
    told = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("rank-*.json"))]
    ended = folder / "exit.json"
    if ended.exists():
        code = json.loads(ended.read_text(encoding="utf-8"))["code"]
    if code == 0 or ended.exists():
        shutil.rmtree(folder)
        return code
    if stopped is not None:
        shutil.rmtree(folder)
        return 128 + stopped
    if told and not any(each["said"] for each in told):
        print(f"pipemare: failed: {told[0]['text']}", file=sys.stderr)
    print(f"pipemare: the ranks' messages are in {folder / 'log.txt'}", file=sys.stderr)
    return 1
