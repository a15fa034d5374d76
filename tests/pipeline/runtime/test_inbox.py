"""Waiting for a message: every wait ends, and ranks that wait for each other are told from ranks that wait for work."""

from __future__ import annotations

import threading
import time

import pytest

from pipemare_exp.pipeline.runtime.inbox import Inbox, RankFailure, Stopped
from pipemare_exp.pipeline.runtime.messages import Kind, Message

TIMEOUT = 0.3


def connected(count: int, timeout: float = TIMEOUT, dead: frozenset[int] = frozenset()) -> list[Inbox]:
    """Inboxes that ask each other directly; those of `dead` ranks never answer."""
    inboxes: list[Inbox] = []

    def made(rank: int) -> Inbox:
        def ask(peer, asked):
            if peer not in dead:
                threading.Thread(target=answer, args=(peer, asked)).start()

        def answer(peer, asked):
            inboxes[rank].put(Message(Kind.PONG), peer)
            inboxes[peer].asked(asked)

        return Inbox(rank, timeout, ask, lambda peer, kind: f"{peer} hangs", lambda ranks, kind: f"circle {ranks}")

    inboxes += [made(rank) for rank in range(count)]
    return inboxes


def waiting(inbox: Inbox, peer: int, ended: dict[int, str]) -> threading.Thread:
    def wait() -> None:
        try:
            inbox.take((Kind.FORWARD, inbox.rank, 0), peer)
            ended[inbox.rank] = "taken"
        except RankFailure as error:
            ended[inbox.rank] = str(error)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("count", [2, 3])
def test_ranks_that_wait_for_each_other_end(count: int) -> None:
    ended: dict[int, str] = {}
    began = time.monotonic()
    inboxes = connected(count)
    for inbox in inboxes:
        waiting(inbox, (inbox.rank + 1) % count, ended)
    end = began + 20.0
    while not ended and time.monotonic() < end:  # the first to find the circle ends, and then tells the others
        time.sleep(0.02)
    assert any(text.startswith("circle") and text.count(",") == count - 1 for text in ended.values()), ended
    assert time.monotonic() - began >= 1.5 * TIMEOUT


def test_a_chain_of_waits_that_ends_in_work_goes_on_waiting() -> None:
    """Rank 2 computes for six timeouts; 0 waits for 1, and 1 for 2."""
    ended: dict[int, str] = {}
    inboxes = connected(3)
    threads = [waiting(inboxes[rank], rank + 1, ended) for rank in (0, 1)]
    time.sleep(6 * TIMEOUT)
    assert not ended
    for rank in (1, 0):
        inboxes[rank].put(Message(Kind.FORWARD, rank, 0), rank + 1)
        threads[rank].join(10.0)
    assert ended == {0: "taken", 1: "taken"}


def test_a_circle_that_a_message_under_way_resolves_is_none() -> None:
    ended: dict[int, str] = {}
    inboxes = connected(2)
    threads = [waiting(inboxes[rank], 1 - rank, ended) for rank in (0, 1)]
    time.sleep(1.3 * TIMEOUT)  # found once
    for rank in (0, 1):
        inboxes[rank].put(Message(Kind.FORWARD, rank, 0), 1 - rank)
        threads[rank].join(10.0)
    assert ended == {0: "taken", 1: "taken"}


def test_a_wait_for_a_message_of_ones_own_ends() -> None:
    (inbox,) = connected(1)
    with pytest.raises(RankFailure, match=r"circle \[0\]"):
        inbox.take((Kind.LOSS, 0, 1), 0)


def test_one_that_does_not_answer_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipemare_exp.pipeline.runtime.inbox.ANSWER", 0.3)
    with pytest.raises(RankFailure, match="1 hangs"):
        connected(2, dead=frozenset({1}))[0].take((Kind.FORWARD, 0, 0), 1)


def test_the_end_of_a_peer_can_be_waited_for_after_a_stop() -> None:
    inbox = connected(2)[1]
    inbox.put(Message(Kind.STOP), 0)
    inbox.put(Message(Kind.END, 0), 0)
    with pytest.raises(Stopped):
        inbox.take((Kind.END, 0, 0), 0)
    assert inbox.take((Kind.END, 0, 0), 0, after_stop=True).kind == Kind.END
