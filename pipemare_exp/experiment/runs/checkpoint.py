"""How a run's state gets to disk and back so that a kill at any moment costs no more than the steps since.

A checkpoint is written beside the last one and renamed over it; the one before stays as `previous.pt`. Files
hold tensors, numbers, strings, lists and dicts only, and are loaded with weights_only=True: no code in them
can run.

A file is torch's own zip archive, with the SHA-256 of all its bytes before as the archive's comment at its end. The
digest is checked before anything else in the file is looked at.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import torch

from pipemare_exp.disk import open_regular, sync_folder
from pipemare_exp.errors import UserError
from pipemare_exp.experiment.runs.reading import Damaged
from pipemare_exp.experiment.runs.writing import replace, write_beside

State = dict[str, Any]

# What the time of one write is multiplied with before the next is due: 2 % of the time at most.
SHARE = 50.0
# Within an epoch, state is written this often (seconds); at an epoch's end as soon as SHARE allows.
INTERVAL = 60.0

_LABEL, _DIGITS = b"sha256:", 64
_BLOCK = 1 << 20


class Checkpoints:
    """A run's folder of checkpoints: `last.pt`, and `keep` older ones (previous.pt, previous-2.pt, ...)."""

    def __init__(self, folder: Path, keep: int = 1):
        self.folder = folder
        self.files = [folder / "last.pt", *(folder / _older(age) for age in range(1, keep + 1))]
        self._passed_over: list[Path] = []
        self._written = time.monotonic()
        self._cost = 0.0

    def save(self, state: State) -> None:
        """Write `state` as last.pt, durably, moving the ones before by one place, but those that `load` passed over."""
        began = time.monotonic()
        temporary = write_beside(self.files[0], lambda file: _write(file, state))
        for path in self._passed_over:
            _put_aside(path)
        self._passed_over = []
        for newer, older in reversed(list(zip(self.files, self.files[1:], strict=False))):
            if newer.exists():
                os.replace(newer, older)
        os.replace(temporary, self.files[0])
        sync_folder(self.folder)
        self._written = time.monotonic()
        self._cost = self._written - began

    def due(self, at_epoch_end: bool) -> bool:
        """Whether enough time has passed that another write costs less than 2 % of it."""
        passed = time.monotonic() - self._written
        return passed >= SHARE * self._cost and (at_epoch_end or passed >= INTERVAL)

    def load(self, say: Callable[[str], None], unfit: Callable[[State], str | None] = lambda _: None) -> State | None:
        """The newest checkpoint that is whole and that `unfit` has no objection to; None where there is none yet.

        Says which ones it had to pass over, and why. Raises UserError when there are checkpoints and none can be used.
        Deletes nothing.
        """
        self._passed_over = []
        reasons = []
        for path in self.files:
            if not os.path.lexists(path):
                continue
            try:
                state = read(path)
                for part in state.get("parts", []):  # a checkpoint of several files is whole where all of them are
                    check(self.folder / part)
                reason = unfit(state)
                if reason is None:
                    return state
                reasons.append(f"{path} cannot be used: {reason}")
            except Damaged as error:
                reasons.append(f"{error.path} is damaged: {error.reason}")
            self._passed_over.append(path)
            say(f"{reasons[-1]}; it is passed over")
        if reasons:
            raise UserError(
                f"no checkpoint can be used. {'. '.join(reasons)}. Restore one from a copy, or move {self.folder} "
                "away to train this run again from the start"
            )
        return None


def _older(age: int) -> str:
    return "previous.pt" if age == 1 else f"previous-{age}.pt"


def _put_aside(path: Path) -> None:
    """Let `path` stand in nobody's way: its damage must not take the place of a whole checkpoint."""
    if path.is_dir() and not path.is_symlink():  # not ours
        path.rename(path.with_name(f"{path.name}.{time.time_ns()}"))
    else:
        path.unlink(missing_ok=True)


def write(path: Path, state: State) -> None:
    """Replace `path` by a checkpoint file with `state` in it, durably."""
    replace(path, lambda file: _write(file, state))


def _write(file: BinaryIO, state: State) -> None:
    archive: Any = _Archive(file)
    torch.save(state, archive)
    archive.finish()


class _Archive:
    """What torch.save writes to: hashes the bytes on their way to `file`, and puts the digest behind them."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.digest = file, hashlib.sha256()
        self._tail = b""
        self._error: OSError | None = None

    def write(self, data: bytes | memoryview) -> int:
        size = len(data)
        if size >= 2:  # the archive's last two bytes are the length of its comment: they wait for `finish`
            self._put(self._tail)
            self._put(memoryview(data)[:-2])
            self._tail = bytes(data[-2:])
        else:
            self._tail += bytes(data)
        return size

    def flush(self) -> None:
        pass

    def _put(self, data: bytes | memoryview) -> None:
        if self._error is not None:
            return
        self.digest.update(data)
        try:
            self.file.write(data)
        except OSError as error:  # torch would make another error of it, and yet another when it ends the archive
            self._error = error

    def finish(self) -> None:
        assert self._tail[-2:] == b"\0\0", "torch wrote an archive with a comment"
        comment = len(_LABEL) + _DIGITS
        self._put(self._tail[:-2] + comment.to_bytes(2, "little") + _LABEL)
        self._put(self.digest.hexdigest().encode())
        if self._error is not None:
            raise self._error


def read(path: Path) -> State:
    """The state in `path`, on the CPU. Raises Damaged, before anything of it is used, unless it is what was written."""
    check(path)
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # the bytes are those that were written: by another version, or by somebody else
        raise Damaged(path, f"its contents cannot be read ({type(error).__name__})") from error
    if not isinstance(state, dict):
        raise Damaged(path, "it holds no state")
    return state


def check(path: Path) -> None:
    """Raises Damaged unless `path` is there with the digest of its own bytes at its end."""
    digest = hashlib.sha256()
    try:
        with open_regular(path) as file:
            left = os.fstat(file.fileno()).st_size - _DIGITS
            while left > 0 and (block := file.read(min(_BLOCK, left))):
                digest.update(block)
                left -= len(block)
            said = file.read(_DIGITS)
    except OSError as error:
        raise Damaged(path, error.strerror or str(error)) from error
    if not re.fullmatch(rb"[0-9a-f]{64}", said):
        raise Damaged(path, "no digest at its end (truncated, or written by something else)")
    if said != digest.hexdigest().encode():
        raise Damaged(path, "its bytes have changed since they were written")
