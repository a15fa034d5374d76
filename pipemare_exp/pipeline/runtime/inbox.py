"""What has arrived at a rank, and waiting for it: every wait is bounded, and ends when a rank has failed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from pipemare_exp.pipeline.runtime.messages import Kind, Message, text_of

ANSWER = 5.0
"""Seconds that a silent rank has to answer before it is held to hang."""

Key = tuple[int, int, int]
"""(kind, stage, index)"""


class RankFailure(RuntimeError):
    """A rank is gone, hangs, or raised; the text names rank, stage, step and cause."""


class Stopped(Exception):
    """Rank 0 has told all ranks to stop where they are: the run has diverged."""


class Inbox:
    """The messages that have arrived, put there by the threads that receive, taken by the one that computes.

    `ping(peer)` asks a rank whether it lives; `hangs(peer, kind)` is what to say when it does not answer; `timeout` is
    how many seconds a rank may be silent before it is asked.
    """

    def __init__(self, timeout: float, ping: Callable[[int], None], hangs: Callable[[int, int], str]) -> None:
        self.timeout, self._ping, self._hangs = timeout, ping, hangs
        self.failure: RankFailure | None = None
        self._stopped = False
        self._arrived: dict[Key, Message] = {}
        self._answers: dict[int, float] = {}
        self._changed = threading.Condition()

    def put(self, message: Message, peer: int | None = None) -> None:
        """Take in a message from `peer`, or from this rank itself."""
        with self._changed:
            if peer is not None:
                self._answers[peer] = time.monotonic()
            if message.kind == Kind.FAIL:
                self.failure = self.failure or RankFailure(text_of(message))
            elif message.kind == Kind.STOP:
                self._stopped = True
            elif message.kind < Kind.FAIL:
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

    def _raise(self) -> None:
        if self.failure is not None:
            raise self.failure
        if self._stopped:
            raise Stopped

    def take(self, key: Key, peer: int | None) -> Message:
        """The message `key`, which `peer` sends (None: this rank itself), as soon as it is here.

        Raises RankFailure when a rank has failed, or when `peer` neither sends for `timeout` seconds nor answers;
        Stopped when rank 0 has ended the run.
        """
        began = time.monotonic()
        with self._changed:
            while True:
                self._raise()
                if key in self._arrived:
                    return self._arrived.pop(key)
                self._changed.wait(1.0)
                if time.monotonic() - began > self.timeout and key not in self._arrived and peer is not None:
                    self._ask(peer, key)
                    began = time.monotonic()

    def _ask(self, peer: int, key: Key) -> None:
        """Raise RankFailure unless `peer` answers. One that answers waits itself, or its own watch will find it out."""
        asked = time.monotonic()
        self._changed.release()
        try:
            self._ping(peer)
        finally:
            self._changed.acquire()
        while self._answers.get(peer, 0.0) < asked:
            if self.failure is not None:
                raise self.failure
            if time.monotonic() - asked > ANSWER:
                raise RankFailure(self._hangs(peer, key[0]))
            self._changed.wait(0.2)
