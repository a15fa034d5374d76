"""How are the cells of a sweep trained as forks of one process, some at a time?

Hydra finds launchers in packages named `hydra_plugins` only, so this one is called by the sweep itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from multiprocessing.connection import Connection, wait

from pipemare_exp.errors import UserError
from pipemare_exp.experiment.runs.folder import Run
from pipemare_exp.experiment.sweep import fork_server
from pipemare_exp.experiment.sweep.worker import DIED_TWICE, Batch, train_job

NAME = "fork"
TICK = 0.2  # seconds between two looks for the wish to stop


def train(
    batch: Batch,
    jobs: int,
    stopped: Callable[[], bool],
    work: Callable[[int, Batch], str | None] = train_job,
) -> list[str | None]:
    """Train all jobs of `batch` in their order, `jobs` at a time. Returns the errors that their folders cannot tell of.

    A job whose process dies is tried once more. Once `stopped` says so no other is started, and those that run are
    waited for: they look for the wish to stop themselves. An exception (a second Ctrl-C) kills them.
    """
    errors: list[str | None] = [None] * len(batch.runs)
    waiting, running = list(range(len(batch.runs))), dict[Connection, tuple[int, fork_server.Child]]()
    deaths = Counter[int]()
    try:
        while running or waiting:
            if stopped():
                waiting.clear()
            while waiting and len(running) < jobs:
                number = waiting.pop(0)
                try:
                    Run(batch.runs[number]).create()
                    child = fork_server.start(work, (number, batch), Run(batch.runs[number]).path / "output.log")
                    running[child.answer] = number, child
                except (OSError, UserError) as error:
                    errors[number] = str(error)
            for answer in wait(list(running), TICK):
                assert isinstance(answer, Connection)
                number, child = running.pop(answer)
                try:
                    errors[number] = answer.recv()
                except EOFError:
                    deaths[number] += 1
                    if deaths[number] == 1:
                        waiting.append(number)
                    else:
                        errors[number] = DIED_TWICE
                answer.close()
                child.process.join()
    finally:
        for _, child in running.values():
            child.process.kill()  # it goes on from its last checkpoint
            child.process.join()
    return errors
