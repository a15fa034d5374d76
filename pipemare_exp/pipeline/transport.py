"""How ranks talk: every receive posted ahead by a thread of its own, no send ever waited for, and every wait bounded.

Between neighbours, and between rank 0 and every other rank, there is one ordered channel each way. A thread per
incoming channel has the next receive posted at all times and puts what arrives into the inbox, so that messages travel
while the rank computes. gloo carries the headers always and the blocks of CPU tensors. A receive is posted for as many
bytes as the longest message of its channel had, a longer one is announced first; both ends count alike. Blocks of CUDA
tensors go
through NCCL, on a communicator and a stream of their own per channel, or with gloo through pinned host memory where
several ranks share one GPU. (NCCL wants one GPU a rank; that path has not been run by the tests, which have no GPU.)
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pipemare_exp.pipeline import messages
from pipemare_exp.pipeline.messages import Message

# Kinds of messages. The first three carry a microbatch's activations or gradients from stage to stage.
FORWARD, RECOMPUTE, BACKWARD = 1, 2, 3
LOSS, SNAPSHOT, SAVED, REPORT = 4, 5, 6, 7  # to rank 0
FAIL, PING, PONG, END, STOP = 8, 9, 10, 11, 12  # about the ranks themselves
HEADER = 13  # the header of a message whose block comes by NCCL
LONGER = -1  # in the place of a header's length: the next message is longer than any before

NAMES = {FORWARD: "activations", RECOMPUTE: "recomputed activations", BACKWARD: "gradients", LOSS: "the loss",
         SNAPSHOT: "weights", SAVED: "a saved checkpoint", REPORT: "a report"}  # fmt: skip

FOREVER = timedelta(days=30)
"""What gloo is told; the inbox bounds every wait by itself."""

ROOM = 4096
"""Bytes for which the first receive of a channel is posted."""

ANSWER = 5.0
"""Seconds that a silent rank has to answer before it is held to hang."""

Key = tuple[int, int, int]
"""(kind, stage, index)"""


class RankFailure(RuntimeError):
    """A rank is gone, hangs, or raised; the text names rank, stage, step and cause."""


class Stopped(Exception):
    """Rank 0 has told all ranks to stop where they are: the run has diverged."""


class Transport:
    """The channels of one rank. `stages_of` are the stages of each rank, for messages; `timeout` in seconds."""

    def __init__(self, stages_of: list[range], timeout: float, device: torch.device) -> None:
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.stages_of, self.timeout, self.device = stages_of, timeout, device
        self.where = "the start"
        """What this rank is at, in words."""
        self.bytes_sent = 0
        self._arrived: dict[Key, Message] = {}
        self._changed = threading.Condition()
        self._failure: RankFailure | None = None
        self._stopped = self._closing = False
        self._answers: dict[int, float] = {}
        self._pending: queue.Queue[tuple[Any, Any] | None] = queue.Queue()
        self._locks = {peer: threading.Lock() for peer in self.peers}
        self._room_there = dict.fromkeys(self.peers, ROOM)
        self._room_here = dict.fromkeys(self.peers, ROOM)
        self._nccl = self._communicators()
        self._threads = [
            threading.Thread(target=self._receive, args=(peer,), name=f"from-{peer}", daemon=True)
            for peer in self.peers
        ]
        self._reaper = threading.Thread(target=self._reap, daemon=True, name="sent")
        for thread in (*self._threads, self._reaper):
            thread.start()

    @property
    def peers(self) -> list[int]:
        others = range(1, self.ranks) if self.rank == 0 else {0, self.rank - 1, self.rank + 1}
        return sorted(peer for peer in others if peer < self.ranks)

    def _communicators(self) -> dict[tuple[int, int], Any]:
        """One NCCL communicator per ordered pair of neighbours, made by all ranks in one order; none without NCCL."""
        if self.device.type != "cuda" or "nccl" not in dist.get_backend_config().lower():
            return {}
        made = {}
        for a in range(self.ranks - 1):
            for pair in ((a, a + 1), (a + 1, a)):
                made[pair] = dist.new_group(sorted(pair), backend="nccl")
        return made

    # Sending

    def send(self, peer: int, message: Message) -> None:
        """Post `message`; returns at once. Its tensors may be changed afterwards."""
        pair = (self.rank, peer)
        block = None
        if pair in self._nccl and message.kind <= BACKWARD:
            ints, block = messages.pack(message, self.device)
            buffer = messages.pack_whole(Message(HEADER, tensors=(torch.tensor(ints),)))
        else:
            buffer = messages.pack_whole(message, pin=self.device.type == "cuda")
        try:
            with self._locks[peer]:
                if buffer.nbytes > self._room_there[peer]:
                    self._room_there[peer] = buffer.nbytes
                    self._post(torch.tensor([LONGER, buffer.nbytes]), peer)
                self._post(buffer, peer)
                if block is not None:
                    self._post(block, peer, self._nccl[pair])
        except RuntimeError as error:
            self._lost(peer, error)

    def _post(self, tensor: Tensor, peer: int, group: Any = None) -> None:
        self._pending.put((dist.isend(tensor, peer, group=group, tag=0), tensor))
        self.bytes_sent += tensor.nbytes

    def _reap(self) -> None:
        """Keeps what is being sent alive until it has left."""
        while (item := self._pending.get()) is not None:
            work, _ = item
            try:
                work.wait(FOREVER)
            except RuntimeError:
                continue  # the receiving thread of that peer sees the same loss, and says so

    # Receiving

    def _receive(self, peer: int) -> None:
        try:
            while self._handle(peer, self._next(peer)):
                pass
        except RuntimeError as error:
            self._lost(peer, error)

    def _next(self, peer: int) -> Message:
        cuda = self.device.type == "cuda"
        buffer = torch.empty(self._room_here[peer], dtype=torch.uint8, pin_memory=cuda)
        _received(dist.irecv(buffer, peer, tag=0))
        first, second = buffer[:16].view(torch.int64).tolist()
        if first == LONGER:
            self._room_here[peer] = second
            buffer = torch.empty(second, dtype=torch.uint8, pin_memory=cuda)
            _received(dist.irecv(buffer, peer, tag=0))
            second = int(buffer[8:16].view(torch.int64))
        if second == HEADER:
            (ints,) = messages.unpack_whole(buffer).tensors or ()
            assert ints is not None
            return self._from_nccl(peer, ints.tolist())
        return messages.unpack_whole(buffer, self.device if cuda and second <= BACKWARD else None)

    def _from_nccl(self, peer: int, ints: list[int]) -> Message:
        """The message whose header was `ints`; its block comes by NCCL."""
        count = messages.block_bytes(ints)
        if not count:
            return messages.unpack(ints, None)
        stream = torch.cuda.Stream(self.device)
        with torch.cuda.stream(stream):
            block = torch.empty(count, dtype=torch.uint8, device=self.device)
            dist.irecv(block, peer, group=self._nccl[peer, self.rank], tag=0).wait()  # type: ignore[union-attr]
            stream.synchronize()  # of this thread alone: the rank goes on computing
        block.record_stream(torch.cuda.default_stream(self.device))
        return messages.unpack(ints, block)

    def _handle(self, peer: int, message: Message) -> bool:
        """Take in one message; False once the peer has said that it was the last."""
        if message.kind == PING:
            self.send(peer, Message(PONG))
            return True
        with self._changed:
            self._answers[peer] = time.monotonic()
            if message.kind == FAIL:
                self._failure = self._failure or RankFailure(text_of(message))
            elif message.kind == STOP:
                self._stopped = True
            elif message.kind < FAIL:
                self._arrived[message.kind, message.stage, message.index] = message
            self._changed.notify_all()
        return message.kind != END

    def deliver(self, message: Message) -> None:
        """Put a message of this rank to itself into the inbox."""
        with self._changed:
            self._arrived[message.kind, message.stage, message.index] = message
            self._changed.notify_all()

    def take(self, key: Key, peer: int) -> Message:
        """The message `key`, which `peer` sends, as soon as it is here.

        Raises RankFailure when a rank has failed, or when `peer` neither sends for `timeout` seconds nor answers;
        Stopped when rank 0 has ended the run.
        """
        began = time.monotonic()
        with self._changed:
            while True:
                if self._failure is not None:
                    raise self._failure
                if self._stopped:
                    raise Stopped
                if key in self._arrived:
                    return self._arrived.pop(key)
                self._changed.wait(1.0)
                if time.monotonic() - began > self.timeout and key not in self._arrived and peer != self.rank:
                    self._ask(peer, key)
                    began = time.monotonic()

    def arrived(self, key: Key) -> bool:
        with self._changed:
            return key in self._arrived

    def _ask(self, peer: int, key: Key) -> None:
        """Raise RankFailure unless `peer` answers. One that answers waits itself, or its own watch will find it out."""
        asked = time.monotonic()
        self._changed.release()
        try:
            self.send(peer, Message(PING))
        finally:
            self._changed.acquire()
        while self._answers.get(peer, 0.0) < asked:
            if self._failure is not None:
                raise self._failure
            if time.monotonic() - asked > ANSWER:
                raise RankFailure(
                    f"{self.name(peer)} hangs: nothing from it for {self.timeout:g} s and no answer for {ANSWER:g} s "
                    f"more; {self.name(self.rank)} waits for {NAMES[key[0]]} at {self.where}"
                )
            self._changed.wait(0.2)

    def check(self) -> None:
        """Raise what has happened to another rank."""
        with self._changed:
            if self._failure is not None:
                raise self._failure
            if self._stopped:
                raise Stopped

    def name(self, rank: int) -> str:
        stages = self.stages_of[rank]
        which = f"stage {stages[0]}" if len(stages) == 1 else f"stages {stages[0]}-{stages[-1]}"
        return f"rank {rank} ({which})"

    def _lost(self, peer: int, error: Exception) -> None:
        with self._changed:
            if self._closing or self._failure is not None:
                return
            text = f"{self.name(peer)} is gone: killed or crashed; seen by {self.name(self.rank)} at {self.where}"
            self._failure = RankFailure(text)
            self._failure.__cause__ = error
            self._changed.notify_all()

    # Ends

    def tell(self, kind: int, text: str = "") -> None:
        """Send a FAIL or STOP to every peer."""
        for peer in self.peers:
            self.send(peer, text_message(kind, text))

    def leave(self, text: str, within: float = 3.0) -> None:
        """Tell every peer of a failure and give the messages time to go out. The process should exit then."""
        self._closing = True
        self.tell(FAIL, text)
        self._pending.put(None)
        self._reaper.join(within)

    def close(self) -> None:
        """Say that nothing more will come, and wait for every peer to have said so. Raises RankFailure."""
        for peer in self.peers:
            self.send(peer, Message(END))
        for thread in self._threads:
            while thread.is_alive():
                thread.join(0.1)
                if self._failure is not None:
                    raise self._failure
        self._closing = True
        self._pending.put(None)
        self._reaper.join(self.timeout)


def _received(work: Any) -> None:
    work.wait(FOREVER)


def text_message(kind: int, text: str, index: int = 0, stage: int = 0) -> Message:
    data = text.encode()
    return Message(kind, stage, index, (torch.frombuffer(bytearray(data), dtype=torch.uint8),) if data else ())


def text_of(message: Message) -> str:
    assert message.tensors is not None
    block = message.tensors[0] if message.tensors else None
    return "" if block is None else bytes(block.tolist()).decode()


def watch_for_parent() -> None:
    """End this process when the one that started it ends, however that happens (Linux)."""
    import ctypes
    import signal

    parent = os.getppid()
    library = ctypes.CDLL(None, use_errno=True)
    if hasattr(library, "prctl"):
        library.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:
            os._exit(1)


class Watch:
    """Ends the process when one action takes longer than `timeout` seconds, after `tell(text)`.

    `running()` is (what, since when), or None while nothing that is watched runs.
    """

    def __init__(
        self, timeout: float, running: Callable[[], tuple[str, float] | None], tell: Callable[[str], None]
    ) -> None:
        self.timeout, self.running, self.tell = timeout, running, tell
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True, name="watch")
        self._thread.start()

    def _look(self) -> None:
        while not self._done.wait(min(1.0, self.timeout / 4)):
            running = self.running()
            if running is not None and time.monotonic() - running[1] > self.timeout:
                self.tell(f"hangs: {running[0]} has not ended for {self.timeout:g} s")
                os._exit(1)

    def stop(self) -> None:
        self._done.set()
