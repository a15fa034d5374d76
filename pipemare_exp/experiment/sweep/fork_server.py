"""How does a function run in a process of its own without importing torch, torchvision and MLflow once more?

Their import costs several seconds of processor time, a good part of a short training. On Linux one server process
imports them, once, and does nothing else; every training is a fork of it (multiprocessing's "forkserver"). It has run
no operation of torch by then, so that no thread pool is lost in the fork.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from pipemare_exp.paths import BESIDE

AVAILABLE = sys.platform == "linux"
PRELOADED = "pipemare_exp.experiment.sweep.preload"
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
"""What keeps a process that is started with it to one thread."""


@dataclass(frozen=True)
class Child:
    """A process that was started. `answer` yields the function's value, or EOFError if the process died before."""

    process: BaseProcess
    answer: Connection


def begin() -> None:
    """Start the server, which goes on importing while the caller does other things; `start` does it too."""
    from multiprocessing import forkserver

    _context()
    with environment(_inherited()):
        forkserver.ensure_running()


def start(work: Callable[..., Any], arguments: tuple[Any, ...], output: Path) -> Child:
    """`work(*arguments)` with one thread in a new process; what it prints is added to the file `output`.

    `work` is a function of a module, its value can be pickled. The process is in a session of its own: the terminal's
    Ctrl-C reaches it only through whoever started it. Raises OSError where `output` cannot be written.
    """
    with open(output, "ab"):
        pass
    context = _context()
    answer, tell = context.Pipe(duplex=False)
    # Handed over: the server may have been started long before, with other values.
    variables = {**os.environ, **ONE_THREAD}
    process = context.Process(target=_run, args=(work, arguments, str(output), variables, tell))
    with environment(_inherited()):
        process.start()
    tell.close()  # the child alone holds it now, so that its end is the pipe's
    return Child(process, answer)


def _context() -> Any:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([PRELOADED])
    return context


def _inherited() -> dict[str, str]:
    """What a process, or the server, must see before its first import: threads, and the package that runs now,
    wherever the command was started from."""
    return {**ONE_THREAD, "PYTHONPATH": os.pathsep.join(filter(None, [str(BESIDE), os.environ.get("PYTHONPATH")]))}


def _run(
    work: Callable[..., Any], arguments: tuple[Any, ...], output: str, variables: Mapping[str, str], tell: Connection
) -> None:
    os.setsid()
    os.environ.clear()
    os.environ.update(variables)
    with open(output, "ab") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)
    tell.send(work(*arguments))


@contextlib.contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Within, the environment has `values` too, which only processes started meanwhile see."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
