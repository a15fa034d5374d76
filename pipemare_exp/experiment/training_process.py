"""How does a command run in a process of its own without importing torch, torchvision and MLflow once more?

Their import costs several seconds of processor time, a good part of a short training. On Linux one server process
imports them, once, and does nothing else; every training is a fork of it (multiprocessing's "forkserver"). It has run
no operation of torch by then, so that no thread pool is lost in the fork. Elsewhere each process imports for itself.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

PRELOADED = "pipemare_exp.experiment.preload"

# The package that runs now, wherever the command was started from.
_PACKAGE = str(Path(__file__).resolve().parents[2])
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def begin() -> None:
    """Start the server, which goes on importing while the caller does other things; `start` does it too."""
    if sys.platform == "linux":
        from multiprocessing import forkserver

        multiprocessing.get_context("forkserver").set_forkserver_preload([PRELOADED])
        with _environment(_ONE_THREAD):  # the server takes over what it is started with
            forkserver.ensure_running()


def start(work: Callable[..., int], arguments: list[str], output: Path) -> BaseProcess:
    """`work(arguments)` with one thread in a new process, whose exit code it gives; `output` gets what it prints.

    `work` is a function of a module. The process is in a session of its own: the terminal's Ctrl-C reaches it only
    through whoever started it, once and not twice. Raises OSError where `output` cannot be written.
    """
    with open(output, "wb"):
        pass
    context: Any = multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")
    environment = {**os.environ, **_ONE_THREAD}
    begin()
    process = context.Process(target=_run, args=(work, arguments, str(output), environment))
    with _environment(_ONE_THREAD):
        process.start()
    return process


def _run(work: Callable[..., int], arguments: list[str], output: str, environment: Mapping[str, str]) -> None:
    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    with open(output, "ab") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)
    sys.exit(work(arguments))


@contextlib.contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    path = os.pathsep.join(filter(None, [_PACKAGE, os.environ.get("PYTHONPATH")]))
    new = {**values, "PYTHONPATH": path}
    before = {name: os.environ.get(name) for name in new}
    os.environ.update(new)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
