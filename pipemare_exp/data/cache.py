"""Where data lives, and how files get there whole or not at all."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from pipemare_exp.disk import sync
from pipemare_exp.environment import DATA
from pipemare_exp.errors import UserError
from pipemare_exp.leftovers import hold, remove_left_over, work_folder


def data_root(root: str | Path | None = None) -> Path:
    """The folder of prepared data: `root` (`data.root`, --data), else $PIPEMARE_DATA, else the user's cache
    folder.

    The last is $XDG_CACHE_HOME/pipemare, or ~/.cache/pipemare. The folder need not exist.
    """
    if root:
        return Path(root).expanduser()
    if os.environ.get(DATA):
        return Path(os.environ[DATA]).expanduser()
    return _user_cache()


def _user_cache() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache).expanduser() if cache else Path.home() / ".cache") / "pipemare"


def make_folder(path: Path) -> Path:
    """`path`, created if need be and writable; UserError where that cannot be."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"cannot make the data folder {path}: {error.strerror}; "
            f"choose another with --data DIR, data.root=DIR or {DATA}"
        ) from error
    if not os.access(path, os.W_OK):
        raise _unwritable(path, "no permission")
    return path


def derived(root: Path, kind: str) -> Path:
    """The folder of what is made from the data: `root`/`kind`, or in the user's cache folder where that cannot be."""
    for base in (root, _user_cache()):
        home = base / kind
        try:
            home.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(home, os.W_OK):
            return home
    return make_folder(root / kind)  # says why not


def made_whole(folder: Path, make: Callable[[Path], None]) -> Path:
    """`folder`, as it is or made now by `make(work)`, which fills the folder `work`; it is there whole or not at all.

    Two processes may make it at the same time: the first to finish wins, the other's work is dropped.
    """
    if folder.exists():
        return folder
    try:
        with work_folder(folder.parent, f".{folder.name}.") as work:
            make(work)
            os.chmod(work, 0o755)
            try:
                os.rename(work, folder)
            except OSError:
                if not folder.exists():  # otherwise another process was first, with the same content
                    raise
    except OSError as error:  # a full disk, most likely
        raise _unwritable(folder, error.strerror) from error
    return folder


@contextmanager
def atomic_write(path: Path, mode: str = "wb") -> Iterator[IO]:
    """A file object whose contents become `path` on success: temporary file beside it, fsync, rename.

    If the block raises, `path` is as it was and the temporary file is gone; the next write of `path` removes one that
    a killed process left behind. Text is UTF-8.
    """
    make_folder(path.parent)
    remove_left_over(path.parent, f".{path.name}.", ".part")
    encoding = None if "b" in mode else "utf-8"
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    except OSError as error:
        raise _unwritable(path, error.strerror) from error
    held = os.dup(handle)  # stays open until the file has its own name
    hold(held)
    try:
        with os.fdopen(handle, mode, encoding=encoding) as file:
            yield file
            file.flush()
            sync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)  # mkstemp's 0600 would hide shared data from other users
        os.replace(temporary, path)
    except OSError as error:  # a full disk, most likely
        raise _unwritable(path, error.strerror) from error
    finally:
        Path(temporary).unlink(missing_ok=True)
        os.close(held)


def _unwritable(path: Path, reason: str | None) -> UserError:
    return UserError(
        f"cannot write {path}: {reason}; make room or mend the permissions, or choose another folder with "
        f"--data DIR, data.root=DIR or {DATA}"
    )


def sha256(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
