"""What has arrived at a rank, and waiting for it: every wait is bounded, and ends when a rank has failed.

A rank that has waited for long asks the one that it waits for. Silence means that this one hangs. An answer means that
it lives: it computes, which its own watch limits, or waits itself. In that case it passes the question on to the rank
that it waits for. A question that comes back to the one that asked has gone around a circle of ranks that wait for
each other. A message may have been under way at that moment, so the circle counts when it is found twice, the second
time a whole `timeout` later, with every rank still in the same wait.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from pipemare_exp.pipeline.runtime.messages import Kind, Message, text_of

ANSWER = 5.0
"""Seconds that a silent rank has to answer before it is held to hang."""

Key = tuple[int, int, int]
"""(kind, stage, index)"""

Asked = tuple[tuple[int, int], ...]
"""The ranks that a question has gone through, the one that asked first, each with the number of its wait."""


class RankFailure(RuntimeError):
    """A rank is gone, hangs, or raised; the text names rank, stage, step and cause."""


class Stopped(Exception):
    """Rank 0 has told all ranks to stop where they are: the run has diverged."""


class Inbox:
    """The messages that have arrived at `rank`, put there by the threads that receive, taken by the one that computes.

    `ask(peer, asked)` sends a question; `hangs(peer, kind)` is what to say when `peer` does not answer, and
    `circle(ranks, kind)` when the ranks wait for each other; `timeout` is how many seconds a rank may be silent before
    it is asked.
    """

    def __init__(
        self,
        rank: int,
        timeout: float,
        ask: Callable[[int, Asked], None],
        hangs: Callable[[int, int], str],
        circle: Callable[[list[int], int], str],
    ) -> None:
        self.rank, self.timeout = rank, timeout
        self._send_question, self._hangs, self._name_circle = ask, hangs, circle
        self.failure: RankFailure | None = None
        self._stopped = False
        self._arrived: dict[Key, Message] = {}
        self._answers: dict[int, float] = {}
        self._changed = threading.Condition()
        self._waits = 0
        self._waiting: tuple[int, Key] | None = None
        """(the rank that is waited for, what for); None while this rank does anything else."""
        self._circle: tuple[Asked, float] | None = None
        """The circle that was found last, and when."""

    def put(self, message: Message, peer: int | None = None) -> None:
        """Take in a message from `peer`, or from this rank itself."""
        with self._changed:
            if peer is not None:
                self._answers[peer] = time.monotonic()
            if message.kind == Kind.FAIL:
                self.failure = self.failure or RankFailure(text_of(message))
            elif message.kind == Kind.STOP:
                self._stopped = True
            elif message.kind < Kind.FAIL or message.kind == Kind.END:
                self._arrived[message.kind, message.stage, message.index] = message
            self._changed.notify_all()

    def lost(self, text: str, cause: Exception) -> None:
        """A rank is gone; the first failure is the one that is told."""
        with self._changed:
            if self.failure is None:
                self.failure = RankFailure(text)
                self.failure.__cause__ = cause
                self._changed.notify_all()

    def check(self) -> None:
        """Raise what has happened to another rank."""
        with self._changed:
            self._raise()

    def _raise(self, stop: bool = True) -> None:
        if self.failure is not None:
            raise self.failure
        if self._stopped and stop:
            raise Stopped

    def take(self, key: Key, peer: int, after_stop: bool = False) -> Message:
        """The message `key`, which `peer` sends (or this rank itself), as soon as it is here.

        Raises RankFailure when a rank has failed, when `peer` neither sends for `timeout` seconds nor answers, or when
        ranks wait for each other (two to three times `timeout`); Stopped when rank 0 has ended the run, unless the
        message is wanted `after_stop` too.
        """
        began = time.monotonic()
        with self._changed:
            self._waits += 1
            self._waiting = (peer, key)
            try:
                while True:
                    self._raise(stop=not after_stop)
                    if key in self._arrived:
                        return self._arrived.pop(key)
                    self._changed.wait(min(1.0, self.timeout))
                    if time.monotonic() - began > self.timeout and key not in self._arrived:
                        self._ask(peer, key)
                        began = time.monotonic()
            finally:
                self._waiting = None

    def _ask(self, peer: int, key: Key) -> None:
        """Raise RankFailure unless `peer` answers."""
        if peer == self.rank:
            raise RankFailure(self._name_circle([self.rank], key[0]))
        asked = time.monotonic()
        self._unlocked(peer, ((self.rank, self._waits),))
        while self._answers.get(peer, 0.0) < asked:
            if self.failure is not None:
                raise self.failure
            if time.monotonic() - asked > ANSWER:
                raise RankFailure(self._hangs(peer, key[0]))
            self._changed.wait(0.2)

    def _unlocked(self, peer: int, asked: Asked) -> None:
        self._changed.release()
        try:
            self._send_question(peer, asked)
        finally:
            self._changed.acquire()

    def asked(self, asked: Asked) -> None:
        """A question has arrived, which has gone through `asked`: pass it on, or see that it is this rank's own."""
        with self._changed:
            if self._waiting is None:
                return
            peer, key = self._waiting
            if asked[0] == (self.rank, self._waits):
                self._found(asked, key)
            elif self.rank not in (rank for rank, _ in asked) and peer != self.rank:
                self._unlocked(peer, (*asked, (self.rank, self._waits)))

    def _found(self, circle: Asked, key: Key) -> None:
        now = time.monotonic()
        if self._circle is None or self._circle[0] != circle:
            self._circle = (circle, now)
        elif now - self._circle[1] > self.timeout / 2 and self.failure is None:
            self.failure = RankFailure(self._name_circle([rank for rank, _ in circle], key[0]))
            self._changed.notify_all()
