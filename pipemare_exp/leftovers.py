"""How does what a killed process was making go away, though it could not clean up?

A folder or file in the making has a name that says so, and its maker holds a lock on it. The lock ends with the
process. Whoever makes the next one of that name first removes those that nobody holds. Where a file system knows no
locks, nothing is removed: that is for its owner to decide.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def work_folder(home: Path, prefix: str) -> Iterator[Path]:
    """A new folder in `home` whose name begins with `prefix`. It is removed at the end unless it was renamed; where
    the process is killed, the next call with that prefix removes it."""
    remove_left_over(home, prefix)
    while True:
        folder = Path(tempfile.mkdtemp(dir=home, prefix=prefix))
        handle = os.open(folder, os.O_RDONLY)
        hold(handle)
        if folder.exists():
            break
        os.close(handle)  # somebody found it in the moment before it was held
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(handle)


def hold(handle: int) -> None:
    """Lock the open file or folder for as long as `handle` is open; nothing where locks are unknown."""
    with suppress(OSError):
        fcntl.flock(handle, fcntl.LOCK_EX)


def remove_left_over(home: Path, prefix: str, suffix: str = "") -> None:
    """Remove what is in `home`, is named `prefix`...`suffix`, and is held by no process."""
    try:
        names = os.listdir(home)
    except OSError:  # not there yet, or not ours to read
        return
    for name in names:
        if name.startswith(prefix) and name.endswith(suffix):
            with suppress(OSError):
                _remove(home / name)


def _remove(path: Path) -> None:
    """Raises OSError where somebody holds it, or it is another user's, or locks are unknown."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.isdir(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)
    finally:
        os.close(handle)
