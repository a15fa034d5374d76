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

from pipemare_exp.paths import BESIDE

PRELOADED = "pipemare_exp.experiment.sweep.preload"
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
"""What keeps a process that is started with it to one thread."""


def begin() -> None:
    """Start the server, which goes on importing while the caller does other things; `start` does it too."""
    if sys.platform == "linux":
        from multiprocessing import forkserver

        _context()
        with environment(_inherited()):
            forkserver.ensure_running()


def start(work: Callable[..., int], arguments: list[str], output: Path) -> BaseProcess:
    """`work(arguments)` with one thread in a new process, whose exit code it gives; `output` gets what it prints.

    `work` is a function of a module. The process is in a session of its own: the terminal's Ctrl-C reaches it only
    through whoever started it, once and not twice. Raises OSError where `output` cannot be written.
    """
    with open(output, "wb"):
        pass
    # Handed over: the server may have been started long before, with other values.
    process = _context().Process(target=_run, args=(work, arguments, str(output), {**os.environ, **ONE_THREAD}))
    with environment(_inherited()):
        process.start()
    return process


def _context() -> Any:
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([PRELOADED])
    return context


def _inherited() -> dict[str, str]:
    """What a process, or the server, must see before its first import: threads, and the package that runs now,
    wherever the command was started from."""
    return {**ONE_THREAD, "PYTHONPATH": os.pathsep.join(filter(None, [str(BESIDE), os.environ.get("PYTHONPATH")]))}


def _run(work: Callable[..., int], arguments: list[str], output: str, variables: Mapping[str, str]) -> None:
    os.setsid()
    os.environ.clear()
    os.environ.update(variables)
    with open(output, "ab") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)
    sys.exit(work(arguments))


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
