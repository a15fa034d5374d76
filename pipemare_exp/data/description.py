"""What is known of a data set before it is there?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar


@dataclass(frozen=True)
class Description:
    """What `pipemare data` knows of a data set.

    `files` are relative to the data root; all of them there means the data set is prepared; none at all
    means that it needs no preparation (bundled or generated). `others` are sets of files that serve as well.
    `prepare(root)` makes them, and returns a sentence that says what it did; it raises UserError with the remedy when
    it cannot. `by_hand` says what to do where nothing can be fetched.
    """

    task: ClassVar[str | None] = None
    """The module of `tasks` that trains on it; None: no task does."""

    name: str
    what: str
    files: tuple[str, ...] = ()
    prepare: Callable[[Path], str] | None = None
    others: tuple[tuple[str, ...], ...] = ()
    by_hand: str = ""
