"""What a rank is given from outside: microbatches by their index, and what the training around it wants of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any


class Feed:
    """Microbatches by their global index g, from a source of minibatches; the last few steps are remembered."""

    def __init__(self, minibatches: Callable[[int], Iterator[Sequence[Any]]], microbatches: int) -> None:
        self._minibatches, self._microbatches = minibatches, microbatches
        self.start(0)

    def start(self, step: int) -> None:
        """Begin at `step`: those before are not asked for."""
        self._source: Iterator[Sequence[Any]] | None = None
        self._next = step
        self._held: dict[int, Sequence[Any]] = {}

    def __call__(self, g: int) -> Any:
        step, n = divmod(g, self._microbatches)
        if self._source is None:
            self._source = self._minibatches(self._next)
        while self._next <= step:
            self._held[self._next] = next(self._source)
            self._next += 1
        return self._held[step][n]

    def forget(self, step: int) -> None:
        """Steps before `step` are not asked for again."""
        for old in [held for held in self._held if held < step]:
            del self._held[old]


@dataclass
class Wishes:
    """What the training around the runtime wants of it. All ranks have the same `observed`.

    observed    whether weights and statistics after t steps are wanted at rank 0
    checkpoint  rank 0, asked once when step t - 1 begins: (whether to save at version t, whether to end there)
    save        a rank's state at version t, by stage: write it down
    """

    observed: Callable[[int], bool] = field(default=lambda version: False)
    checkpoint: Callable[[int], tuple[bool, bool]] = field(default=lambda version: (False, False))
    save: Callable[[int, dict[int, dict[str, Any]]], None] | None = None
