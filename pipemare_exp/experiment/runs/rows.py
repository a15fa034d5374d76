"""The rows of metrics.jsonl: how they are added and read, and how a checkpoint and a result know those before them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from pipemare_exp.disk import open_regular, sync
from pipemare_exp.experiment.runs.reading import Damaged
from pipemare_exp.experiment.runs.writing import finite_json, replace

Row = dict[str, Any]


def read_rows(path: Path) -> list[Row]:
    """All rows; none where there is no file. A torn last line is left out; Damaged where another is no row."""
    return [_row(line, number, path) for number, line in enumerate(_lines(path), start=1)]


def append(path: Path, rows: list[Row]) -> None:
    """Add rows and hand them to the operating system."""
    with open(path, "a", encoding="utf-8") as file:
        file.writelines(json.dumps(finite_json(row), allow_nan=False) + "\n" for row in rows)


def mark(path: Path) -> dict[str, Any]:
    """What a checkpoint and a result keep of the rows until now: their number and the SHA-256 of their bytes.

    Waits until the disk has them: the checkpoint relies on them.
    """
    with open(path, "a", encoding="utf-8") as file:
        sync(file.fileno())
    return _mark(list(_lines(path)))


def lost(path: Path, marked: dict[str, Any]) -> str | None:
    """Why the rows that `mark` counted are not the first ones of the file; None where they are."""
    first = list(islice(_lines(path), marked["rows"]))
    if len(first) < marked["rows"]:
        return f"{path.name} has lost rows: {marked['rows']} were written, {len(first)} are there"
    return None if _mark(first) == marked else f"the first {marked['rows']} rows of {path.name} were changed"


def keep(path: Path, count: int) -> None:
    """Drop all but the first `count` rows: a run that goes on writes the others again."""
    kept = list(islice(_lines(path), count))
    replace(path, lambda file: file.writelines(kept))


def _mark(lines: list[bytes]) -> dict[str, Any]:
    return {"rows": len(lines), "sha256": hashlib.sha256(b"".join(lines)).hexdigest()}


def _lines(path: Path) -> Iterator[bytes]:
    """The whole lines: what follows the last newline was torn by a kill."""
    try:
        with open_regular(path) as file:
            yield from (line for line in file if line.endswith(b"\n"))
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise Damaged(path, error.strerror or str(error)) from error


def _row(line: bytes, number: int, path: Path) -> Row:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _damaged(path, number) from error
    if not isinstance(row, dict) or not isinstance(row.get("kind"), str) or not isinstance(row.get("step"), int):
        raise _damaged(path, number)
    return row


def _damaged(path: Path, number: int) -> Damaged:
    return Damaged(path, f"line {number} is no row", "restore it from a copy, or move the run's folder away")
