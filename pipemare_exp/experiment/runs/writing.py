"""How is a file of a run replaced, so that neither a reader nor a power cut ever finds half of one?

It is written beside its place under another name, brought to the disk and renamed. What a write leaves behind when
its process is killed is removed by `remove_left_over` when the run is next trained.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from pipemare_exp.disk import sync, sync_folder

_TEMPORARY = re.compile(r"\..+\.(\d+)\.tmp")


def finite_json(value: Any) -> Any:
    """`value` with NaN and infinities replaced by None, which is what JSON can say of them."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite_json(item) for item in value]
    return value


def write_beside(path: Path, write: Callable[[BinaryIO], None], durable: bool = True) -> Path:
    """Have `write` fill a new file beside `path`, which `os.replace` can put in its place. Removed if that fails."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            write(file)
            file.flush()
            if durable:
                sync(file.fileno())
    except BaseException:
        temporary.unlink(missing_ok=True)  # what is left of it on a full disk would keep the disk full
        raise
    return temporary


def replace(path: Path, write: Callable[[BinaryIO], None], durable: bool = True) -> None:
    """Have `write` make the new contents of `path`; `durable`: and wait until the disk has them."""
    os.replace(write_beside(path, write, durable), path)
    if durable:
        sync_folder(path.parent)


def write_text(path: Path, text: str, durable: bool = True) -> None:
    """Replace `path` by `text`."""
    replace(path, lambda file: _fill(file, text.encode("utf-8")), durable)


def _fill(file: BinaryIO, data: bytes) -> None:
    file.write(data)


def write_json(path: Path, value: Any, durable: bool = True) -> None:
    """Replace `path` by `value` as JSON, NaN and infinities as null."""
    write_text(path, json.dumps(finite_json(value), indent=2, allow_nan=False) + "\n", durable)


def remove_left_over(folder: Path) -> None:
    """Remove the unfinished files, in `folder` and below it, of processes that are no more."""
    for path in folder.rglob(".*.tmp"):
        named = _TEMPORARY.fullmatch(path.name)
        if named and not _alive(int(named[1])):
            path.unlink(missing_ok=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # another user's
        pass
    return True
