"""How does a command run in a process of its own without the seconds that importing torch takes?

This process imports everything once and each command is a fork of it, as in `pipemare sweep launcher=fork`. A fork that
runs many commands, one after the other (`Servant`), is for those that are through in milliseconds.
"""

from __future__ import annotations

import contextlib
import io
import logging
import multiprocessing
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any

WARM = (
    "pipemare_exp.experiment.sweep.preload", "pipemare_exp.experiment.config.compose", "pipemare_exp.report.page",
    "paper_figures.registry", "seaborn", "matplotlib.pyplot", "rich.table", "rich.console", "scipy.stats",
)  # fmt: skip
MEMORY = 12 << 30
"""Bytes of address space that a command may take: a file without an end must not take the machine's memory."""
SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGINT, signal.SIGPIPE, signal.SIGALRM)


@dataclass(frozen=True)
class Done:
    """How a command ended. `code`: 128 + signal for one that was killed. `left`: its children that outlived it."""

    code: int
    out: str
    err: str
    seconds: float
    hung: bool = False
    left: tuple[int, ...] = ()


def warm() -> None:
    """Import what commands use. No operation of torch may run before a fork: it would lose the threads."""
    from pipemare_exp import cli

    for name in (*WARM, *(f"pipemare_exp.commands.{command}" for command in cli.available())):
        import_module(name)


def command(*line: str) -> Callable[[], int]:
    """`pipemare LINE` as a function to be forked."""

    def call() -> int:
        from pipemare_exp import cli

        sys.argv = ["pipemare", *line]
        return cli.main(list(line))

    return call


@dataclass
class Started:
    """A forked function on its way."""

    pid: int
    began: float
    streams: tuple[IO[bytes], IO[bytes]]

    def kill(self, number: int = signal.SIGKILL) -> bool:
        """Send a signal to the process alone; whether it was still there."""
        if self.ended():
            return False
        os.kill(self.pid, number)
        return True

    def ended(self) -> bool:
        """Whether it is through (it stays to be waited for)."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def wait(self, bound: float) -> Done:
        """Wait until it is through, or kill it and its children after `bound` seconds."""
        while not (through := self.ended()) and time.monotonic() - self.began < bound:
            time.sleep(0.003)
        seconds = time.monotonic() - self.began
        if not through:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        left = tuple(_session(self.pid)) if through else ()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        texts = []
        for stream in self.streams:
            stream.seek(0)
            texts.append(stream.read().decode("utf-8", "backslashreplace"))
            stream.close()
        return Done(code if code >= 0 else 128 - code, *texts, seconds, hung=not through, left=left)


def start(
    call: Callable[[], int],
    *,
    setup: Callable[[], None] | None = None,
    stdin: str | None = None,
    cwd: Path | None = None,
) -> Started:
    """Run `call` in a forked process, the leader of a session; `setup` runs before it, within."""
    streams = (tempfile.TemporaryFile(), tempfile.TemporaryFile())
    pid = os.fork()
    if pid:
        return Started(pid, time.monotonic(), streams)
    code = 70
    try:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        _redirect(streams, stdin)
        for number in SIGNALS:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        if cwd is not None:
            os.chdir(cwd)
        if setup is not None:
            setup()
        code = _call(call)
    except BaseException:
        os.write(2, traceback.format_exc().encode("utf-8", "backslashreplace"))
    finally:
        os._exit(code)


def run(call: Callable[[], int], bound: float, **options: Any) -> Done:
    """`start`, then `wait`."""
    return start(call, **options).wait(bound)


def _call(call: Callable[[], int]) -> int:
    """What the interpreter would make of `call`: its exit code, or a traceback and 1."""
    try:
        code = call()
    except BaseException:
        traceback.print_exc()
        code = 1
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    with contextlib.suppress(Exception):
        sys.stderr.flush()
    return code


def _redirect(streams: Sequence[IO[bytes]], stdin: str | None) -> None:
    """File descriptors 0 to 2, and Python's streams over them, as a new interpreter has them."""
    with tempfile.TemporaryFile() as source:
        source.write((stdin or "").encode())
        source.seek(0)
        os.dup2(source.fileno(), 0)
    for number, stream in enumerate(streams, start=1):
        os.dup2(stream.fileno(), number)
    sys.stdin = open(0, encoding="utf-8", closefd=False)
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = io.TextIOWrapper(open(2, "wb", 0, closefd=False), "utf-8", "backslashreplace", write_through=True)
    for handler in list(logging.getLogger().handlers):  # of the process that was forked
        logging.getLogger().removeHandler(handler)


def _session(leader: int) -> list[int]:
    """The living processes of the session that `leader` led."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                fields = Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == leader and fields[0] not in "ZX":
                    found.append(int(entry))
    return found


class Servant:
    """A forked process that runs commands one after the other, replaced after `lines` of them, a hang or its death."""

    def __init__(self, lines: int = 200, setup: Callable[[], None] | None = None) -> None:
        self.lines, self.setup, self.left = lines, setup, 0
        self.process: Started | None = None

    def run(self, line: Sequence[str], bound: float, stdin: str = "", cwd: Path | None = None) -> Done:
        """`pipemare LINE`."""
        if self.process is None or self.left == 0:
            self.close()
            self._begin()
        self.left -= 1
        began = time.monotonic()
        self.ours.send((list(line), stdin, cwd))
        if self.ours.poll(bound):
            with contextlib.suppress(EOFError, ConnectionError):
                return Done(*self.ours.recv(), time.monotonic() - began)
        hung = self.process is not None and not self.process.ended()
        done = self.close()
        return Done(done.code if done else 70, "", done.err if done else "", time.monotonic() - began, hung=hung)

    def close(self) -> Done | None:
        """End the process."""
        process, self.process = self.process, None
        if process is None:
            return None
        self.ours.close()
        process.kill()
        return process.wait(60.0)

    def _begin(self) -> None:
        self.ours, theirs = multiprocessing.Pipe()
        self.process, self.left = start(lambda: _serve(theirs, self.ours), setup=self.setup), self.lines
        theirs.close()


def _serve(pipe: Connection, other: Connection) -> int:
    other.close()
    environment, folder = dict(os.environ), os.getcwd()
    while True:
        try:
            line, stdin, cwd = pipe.recv()
        except EOFError:
            return 0
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(cwd or folder)
        random.seed(0)
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            _redirect((out, err), stdin)
            code = _call(command(*line))
            texts = []
            for stream in (out, err):
                stream.seek(0)
                texts.append(stream.read().decode("utf-8", "backslashreplace"))
        pipe.send((code, *texts))
