"""Which bytes does a run learn from? The size and SHA-256 of every file that it reads, or of what it generates.

A file is read whole once. Its digest is kept in `.digests.json` beside it and holds while the file's size and times are
those it was taken at; where that cannot be written the file is read again each time.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipemare_exp.data.cache import atomic_write
from pipemare_exp.errors import UserError

KEPT = ".digests.json"

SETTLED = 2.0
"""Seconds that a file must have been left alone before its digest is kept: within one tick of the file system's clock a
second change would show in neither size nor times."""


@dataclass(frozen=True)
class Input:
    """What a run reads under one name: `bytes` of it, and their SHA-256 in hexadecimal. `path`: where, if in a file."""

    bytes: int
    sha256: str
    path: Path | None = None

    def as_json(self) -> dict[str, Any]:
        """What a record keeps: where the file lies on one machine is not part of what it is."""
        return {"bytes": self.bytes, "sha256": self.sha256}


def of_file(path: Path) -> Input:
    """The identity of a file. Raises UserError where it cannot be read."""
    path = Path(path)
    try:
        before = _state(path)
        known = _known(path, before)
        if known is not None:
            return Input(before["bytes"], known, path)
        with open(path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if before == _state(path):
            _keep(path, {**before, "sha256": digest})
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    return Input(before["bytes"], digest, path)


def of_files(paths: Mapping[str, Path]) -> dict[str, Input]:
    """The identities of files under the names that a record gives them."""
    return {name: of_file(path) for name, path in paths.items()}


def of_source(path: Path) -> dict[str, Input]:
    """The identity of an installed source file. Nothing is kept beside it."""
    found = path.read_bytes()
    return {path.name: Input(len(found), hashlib.sha256(found).hexdigest(), path)}


def of_arrays(arrays: Mapping[str, np.ndarray]) -> dict[str, Input]:
    """The identities of arrays: of their types, shapes and numbers."""
    found = {}
    for name, array in arrays.items():
        digest = hashlib.sha256(f"{array.dtype.str} {array.shape} ".encode())
        digest.update(np.ascontiguousarray(array).data)
        found[name] = Input(array.nbytes, digest.hexdigest())
    return found


def first_whole(root: Path, forms: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    """The first set of file names of which all are under `root`, () where none is."""
    return next((form for form in forms if form and all((root / name).is_file() for name in form)), ())


def _state(path: Path) -> dict[str, int]:
    found = os.stat(path)
    return {"bytes": found.st_size, "modified": found.st_mtime_ns, "changed": found.st_ctime_ns}


def _kept(folder: Path) -> dict[str, Any]:
    """What is kept of the files of a folder; nothing where that is damaged, since it can be had again."""
    try:
        found = json.loads((folder / KEPT).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _known(path: Path, state: Mapping[str, int]) -> str | None:
    """The digest that is kept of a file in this state, None where there is none."""
    kept = _kept(path.parent).get(path.name)
    if not isinstance(kept, dict) or any(kept.get(key) != value for key, value in state.items()):
        return None
    digest = kept.get("sha256")
    whole = isinstance(digest, str) and len(digest) == 64 and set(digest) <= set("0123456789abcdef")
    return digest if whole else None


def _open_to_writing(folder: Path) -> bool:
    """Whether files may be put into `folder`; one that nobody is to write to is left alone by root, too."""
    return bool(folder.stat().st_mode & 0o222) and os.access(folder, os.W_OK)


def _keep(path: Path, entry: Mapping[str, Any]) -> None:
    changed = max(entry["modified"], entry["changed"]) / 1e9
    if time.time() - changed < SETTLED or not _open_to_writing(path.parent):
        return
    there = {name: one for name, one in _kept(path.parent).items() if (path.parent / name).is_file()}
    with suppress(UserError), atomic_write(path.parent / KEPT, "w") as file:  # a full disk costs the cache only
        json.dump({**there, path.name: entry}, file, indent=1, sort_keys=True)
