"""The microbatches that a rank reads, by their index."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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
