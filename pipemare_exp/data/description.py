"""What is known of a data set before it is there?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from pipemare_exp.data.digests import Input, first_whole, of_files


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

    def inputs(self, root: Path, cfg: Any) -> dict[str, Input]:
        """By name, the identity of every file that a run of the configuration `cfg` reads, or of what it generates.

        Here: the files of the form that is there, {} for a data set without files (`data.inputs` then takes the source
        file that describes it). A kind of data set that reads others, or makes files of them, says so itself.
        """
        return of_files({name: root / name for name in first_whole(root, (self.files, *self.others))})
