"""How ranks talk: every receive posted ahead by a thread of its own, no send ever waited for, and every wait bounded.

Between neighbours, and between rank 0 and every other rank, there is one ordered channel each way. A thread per
incoming channel has the next receive posted at all times and puts what arrives into the inbox, so that messages travel
while the rank computes.

gloo carries every header, and the blocks of CPU tensors. It has to be told the size of a message before it receives it.
So the two ends of a channel each remember the longest message that has gone through it: a receive is posted for that
many bytes, and the sender announces a longer message by a short one (LONGER), after which both remember the new length.

Blocks of CUDA tensors go through NCCL, on a communicator and a stream of their own per channel, or with gloo through
pinned host memory where several ranks share one GPU. (NCCL wants one GPU a rank; that path has not been run by the
tests, which have no GPU.)
"""

from __future__ import annotations

import queue
import threading
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pipemare_exp.pipeline.runtime.inbox import ANSWER, Asked, Inbox, Key, RankFailure
from pipemare_exp.pipeline.runtime.messages import (
    LONGER,
    NAMES,
    Kind,
    Message,
    block_bytes,
    pack,
    pack_whole,
    text_message,
    unpack,
    unpack_whole,
)
from pipemare_exp.pipeline.runtime.processes import let_compute_first

FOREVER = timedelta(days=30)
"""What gloo is told; the inbox bounds every wait by itself."""

ROOM = 4096
"""Bytes for which the first receive of a channel is posted."""


class Transport:
    """The channels of one rank. `stages_of` are the stages of each rank, for messages; `timeout` in seconds."""

    def __init__(self, stages_of: list[range], timeout: float, device: torch.device) -> None:
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.stages_of, self.timeout, self.device = stages_of, timeout, device
        self.where = "the start"
        """What this rank is at, in words."""
        self.bytes_sent = 0
        self._inbox = Inbox(self.rank, timeout, self._ask, self._hangs, self._circle)
        self._closing = False
        self._pending: queue.Queue[tuple[Any, Any] | None] = queue.Queue()
        self._locks = {peer: threading.Lock() for peer in self.peers}
        self._room_there = dict.fromkeys(self.peers, ROOM)
        self._room_here = dict.fromkeys(self.peers, ROOM)
        self._nccl = self._communicators()
        let_compute_first()
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
        if pair in self._nccl and message.kind <= Kind.BACKWARD:
            ints, block = pack(message, self.device)
            buffer = pack_whole(Message(Kind.HEADER, tensors=(torch.tensor(ints),)))
        else:
            buffer = pack_whole(message, pin=self.device.type == "cuda")
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
        self._own_stream()
        while (item := self._pending.get()) is not None:
            work, _ = item
            try:
                work.wait(FOREVER)
            except RuntimeError:
                continue  # the receiving thread of that peer sees the same loss, and says so

    # Receiving

    def _own_stream(self) -> None:
        """Give this thread a CUDA stream: what it waits for there must not hold up the computing."""
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
            torch.cuda.set_stream(torch.cuda.Stream(self.device))

    def _receive(self, peer: int) -> None:
        self._own_stream()
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
        if second == Kind.HEADER:
            (ints,) = unpack_whole(buffer).tensors or ()
            assert ints is not None
            return self._from_nccl(peer, ints.tolist())
        message = unpack_whole(buffer, self.device if cuda and second <= Kind.BACKWARD else None)
        for tensor in message.tensors or ():
            if tensor is not None and tensor.is_cuda:
                tensor.record_stream(torch.cuda.default_stream(self.device))
        return message

    def _from_nccl(self, peer: int, ints: list[int]) -> Message:
        """The message whose header was `ints`; its block comes by NCCL."""
        count = block_bytes(ints)
        if not count:
            return unpack(ints, None)
        block = torch.empty(count, dtype=torch.uint8, device=self.device)
        dist.irecv(block, peer, group=self._nccl[peer, self.rank], tag=0).wait()  # type: ignore[union-attr]
        torch.cuda.current_stream(self.device).synchronize()  # this thread's: the rank goes on computing
        block.record_stream(torch.cuda.default_stream(self.device))
        return unpack(ints, block)

    def _handle(self, peer: int, message: Message) -> bool:
        """Take in one message; False once the peer has said that it was the last."""
        if message.kind == Kind.PING:
            self.send(peer, Message(Kind.PONG))
            (through,) = message.tensors or ()
            assert through is not None
            self._inbox.asked(tuple((rank, wait) for rank, wait in through.tolist()))
        else:
            self._inbox.put(message, peer)
        return message.kind != Kind.END

    def deliver(self, message: Message) -> None:
        """Put a message of this rank to itself into the inbox."""
        self._inbox.put(message)

    def take(self, key: Key, peer: int) -> Message:
        """The message `key`, which `peer` sends, as soon as it is here; raises as `Inbox.take`."""
        return self._inbox.take(key, peer)

    def check(self) -> None:
        """Raise what has happened to another rank."""
        self._inbox.check()

    def _ask(self, peer: int, asked: Asked) -> None:
        self.send(peer, Message(Kind.PING, tensors=(torch.tensor(asked),)))

    def _circle(self, ranks: list[int], kind: int) -> str:
        here = f"{self.name(self.rank)} waits for {NAMES[Kind(kind)]} at {self.where}"
        if len(ranks) == 1:
            return f"{here}, which nobody sends"
        return f"ranks {', '.join(map(str, sorted(ranks)))} wait for each other; {here}"

    def _hangs(self, peer: int, kind: int) -> str:
        return (
            f"{self.name(peer)} hangs: nothing from it for {self.timeout:g} s and no answer for {ANSWER:g} s more; "
            f"{self.name(self.rank)} waits for {NAMES[Kind(kind)]} at {self.where}"
        )

    def name(self, rank: int) -> str:
        stages = self.stages_of[rank]
        which = f"stage {stages[0]}" if len(stages) == 1 else f"stages {stages[0]}-{stages[-1]}"
        return f"rank {rank} ({which})"

    def _lost(self, peer: int, error: Exception) -> None:
        if not self._closing:
            text = f"{self.name(peer)} is gone: killed or crashed; seen by {self.name(self.rank)} at {self.where}"
            self._inbox.lost(text, error)

    # Ends

    def tell(self, kind: int, text: str = "") -> None:
        """Send a FAIL or STOP to every peer."""
        for peer in self.peers:
            self.send(peer, text_message(kind, text))

    def leave(self, text: str, within: float = 3.0) -> None:
        """Tell every peer of a failure and give the messages time to go out. The process should exit then."""
        self._closing = True
        self.tell(Kind.FAIL, text)
        self._pending.put(None)
        self._reaper.join(within)

    def close(self) -> None:
        """Say that nothing more will come, and wait for every peer to have said so. Raises RankFailure.

        Rank 0 says so first, which may be long after the others are through: it also evaluates. Until then they answer
        its questions and it answers theirs.
        """
        if self.rank:
            self._inbox.take((Kind.END, 0, 0), 0, after_stop=True)
        for peer in self.peers:
            self.send(peer, Message(Kind.END, self.rank))
        end = time.monotonic() + self.timeout
        for peer, thread in zip(self.peers, self._threads, strict=True):
            while thread.is_alive():
                thread.join(0.1)
                if self._inbox.failure is not None:
                    raise self._inbox.failure
                if time.monotonic() > end:
                    raise RankFailure(f"{self.name(peer)} hangs: it has not closed for {self.timeout:g} s")
        self._closing = True
        self._pending.put(None)
        self._reaper.join(self.timeout)


def _received(work: Any) -> None:
    work.wait(FOREVER)
