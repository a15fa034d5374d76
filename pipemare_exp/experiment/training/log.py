"""Where can one read later what a training said, and when?"""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from typing import Any

from pipemare_exp.disk import unwaiting
from pipemare_exp.experiment.runs.credentials import hide

NAME = "train.log"


class RunLog(logging.FileHandler):
    """RUN/train.log: every message of the training and every warning of the package, with the time of each.

    Entered, it appends to what earlier sessions wrote. It costs the run nothing: where the file cannot be written (a
    full disk), lines are lost and no error is raised.
    """

    def __init__(self, run: Path):
        super().__init__(run / NAME, encoding="utf-8", errors="backslashreplace", delay=True)
        self.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S"))

    def __enter__(self) -> RunLog:
        logging.getLogger("pipemare_exp").addHandler(self)
        return self

    def __exit__(self, *error: object) -> None:
        logging.getLogger("pipemare_exp").removeHandler(self)
        with contextlib.suppress(OSError):  # what is left to write has no place
            self.close()

    def say(self, text: str) -> None:
        """A line of the training's own."""
        self.handle(logging.makeLogRecord({"msg": text}))

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(OSError):  # the file cannot even be opened
            super().emit(record)

    def _open(self) -> Any:
        return open(self.baseFilename, self.mode, encoding=self.encoding, errors=self.errors, opener=unwaiting)

    def format(self, record: logging.LogRecord) -> str:
        return hide(super().format(record))

    def handleError(self, record: logging.LogRecord) -> None:
        """Say nothing: logging's own way is a traceback in the middle of the progress."""
