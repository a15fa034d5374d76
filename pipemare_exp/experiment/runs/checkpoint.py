"""How a run's state gets to disk and back so that a kill at any moment costs no more than the steps since.

A checkpoint is written beside the last one and renamed over it; the one before stays as `previous.pt`. Files
hold tensors, numbers, strings, lists and dicts only, and are loaded with weights_only=True: no code in them
can run.
"""

from __future__ import annotations

import os
import pickle
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from pipemare_exp.errors import UserError
from pipemare_exp.experiment.runs.folder import sync_folder

State = dict[str, Any]

# What the time of one write is multiplied with before the next is due: 2 % of the time at most.
SHARE = 50.0
# Within an epoch, state is written this often (seconds); at an epoch's end as soon as SHARE allows.
INTERVAL = 60.0


class Checkpoints:
    """A run's folder of checkpoints: `last.pt`, and `keep` older ones (previous.pt, previous-2.pt, ...)."""

    def __init__(self, folder: Path, keep: int = 1):
        self.folder = folder
        self.files = [folder / "last.pt", *(folder / _older(age) for age in range(1, keep + 1))]
        self._written = time.monotonic()
        self._cost = 0.0

    def save(self, state: State) -> None:
        """Write `state` as last.pt, durably, moving the ones before by one place."""
        began = time.monotonic()
        write(self.folder / ".writing.pt", state)
        for newer, older in reversed(list(zip(self.files, self.files[1:], strict=False))):
            if newer.exists():
                os.replace(newer, older)
        os.replace(self.folder / ".writing.pt", self.files[0])
        sync_folder(self.folder)
        self._written = time.monotonic()
        self._cost = self._written - began

    def due(self, at_epoch_end: bool) -> bool:
        """Whether enough time has passed that another write costs less than 2 % of it."""
        passed = time.monotonic() - self._written
        return passed >= SHARE * self._cost and (at_epoch_end or passed >= INTERVAL)

    def load(self, say: Callable[[str], None]) -> State | None:
        """The newest readable checkpoint, None where there is none yet; says which ones it had to pass over.

        Raises UserError when there are checkpoints and none can be read. Deletes nothing.
        """
        existing = [path for path in self.files if path.exists()]
        for path in existing:
            state = read(path)
            # A checkpoint of several files names the others; they are whole or it is not.
            if state is not None and all(intact(self.folder / part) for part in state.get("parts", [])):
                return state
            say(f"{path} is damaged (truncated or changed) and is passed over")
        if existing:
            raise UserError(
                f"no readable checkpoint: {', '.join(str(path) for path in existing)} damaged; "
                f"restore one from a copy, or move {self.folder} away to train this run again from the start"
            )
        return None


def _older(age: int) -> str:
    return "previous.pt" if age == 1 else f"previous-{age}.pt"


def write(path: Path, state: State) -> None:
    """Write `state` to `path` and wait until the disk has it (not atomic by itself: rename it afterwards)."""
    with open(path, "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())


def read(path: Path) -> State | None:
    """The state in `path`, on the CPU; None when the file is damaged (all its checksums are verified)."""
    if not intact(path):
        return None
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (EOFError, RuntimeError, pickle.UnpicklingError):
        return None


def intact(path: Path) -> bool:
    """Whether `path` is there and all its checksums are right."""
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.testzip() is None
    except (zipfile.BadZipFile, EOFError, RuntimeError, FileNotFoundError):
        return False
