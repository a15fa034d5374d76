"""Two machines for a test: two network name spaces of this one, joined by a cable (a veth pair) and by nothing else."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

ADDRESSES = ("10.77.0.1", "10.77.0.2")
PORT = 29577


@dataclass(frozen=True)
class Machine:
    """`space` is the name space, `cable` its end of the veth pair."""

    number: int
    space: str
    cable: str

    def inside(self, command: Sequence[str]) -> list[str]:
        """The command that runs `command` on this machine."""
        return ["ip", "netns", "exec", self.space, *command]

    def torchrun(self, ranks: int, arguments: Sequence[str]) -> list[str]:
        """torchrun for this machine's part of a job of `ranks` ranks on each of two machines."""
        return self.inside(
            [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", str(ranks),
             "--rdzv-backend", "c10d", "--rdzv-endpoint", f"{ADDRESSES[0]}:{PORT}", "--rdzv-id", "pipemare",
             "--rdzv-conf", f"is_host={int(self.number == 0)},timeout=300", "--local-addr", ADDRESSES[self.number],
             *arguments]
        )  # fmt: skip

    def variables(self) -> dict[str, str]:
        return {"GLOO_SOCKET_IFNAME": self.cable}

    def die(self) -> None:
        """As at a power cut: the cable is dead first, so that nobody hears of the processes' end."""
        _ip("netns", "exec", self.space, "ip", "link", "set", self.cable, "down")
        for pid in processes(self.space):
            os.kill(pid, signal.SIGKILL)


def why_not() -> str:
    """Why such machines cannot be made here; empty where they can."""
    if shutil.which("ip") is None:
        return "no `ip` command (iproute2)"
    try:
        with two_machines():
            return ""
    except subprocess.CalledProcessError as error:
        return f"this user may not make network name spaces: {error.stderr.strip()}"


@contextmanager
def two_machines() -> Iterator[tuple[Machine, Machine]]:
    """Both machines, which are removed at the end with all that still runs on them."""
    first, second = (Machine(n, f"pipemare-{os.getpid()}-{n}", f"pm{n}x{os.getpid() % 100_000}") for n in (0, 1))
    made: list[Machine] = []
    try:
        for machine in (first, second):
            _ip("netns", "add", machine.space)
            made.append(machine)
        # Made within the first, so that it is never seen outside.
        cables = ("link", "add", first.cable, "type", "veth", "peer", "name", second.cable)
        _ip("netns", "exec", first.space, "ip", *cables)
        _ip("netns", "exec", first.space, "ip", "link", "set", second.cable, "netns", second.space)
        for machine in (first, second):
            for words in (
                ("addr", "add", f"{ADDRESSES[machine.number]}/24", "dev", machine.cable),
                ("link", "set", machine.cable, "up"),
                ("link", "set", "lo", "up"),
            ):
                _ip("netns", "exec", machine.space, "ip", *words)
        yield first, second
    finally:
        for machine in made:
            for pid in processes(machine.space):
                os.kill(pid, signal.SIGKILL)
            _ip("netns", "del", machine.space)


def processes(space: str) -> list[int]:
    return [int(word) for word in _ip("netns", "pids", space).split()]


def _ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=60).stdout
