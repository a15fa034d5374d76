"""What torchrun and the ranks write on their standard error: which lines a user sees, and what is told at a failure."""

from __future__ import annotations

import re
import signal
import sys
import threading
from pathlib import Path
from typing import IO

_AGENT = re.compile(r"\[?([WEI])\d{4} [\d:.]+ ")
"""How a line of torch's own log begins."""

_REPORT = re.compile(r"Traceback \(most recent call last\):$")
_FRAME = re.compile(r"[=\-~^\s]*$|(Failures|Root Cause .*):$|\s+<NO_OTHER_FAILURES>|\s+File \".*/torch/|[EWI]\d{4} ")
_ENDED = re.compile(r"\s+rank\s+: (\d+) .*\n\s+exitcode\s+: (-?\d+) \(pid: (\d+)\)")


class Said:
    """Reads `source` in a thread of its own: everything into the file `log`, the ranks' lines to the user too.

    torchrun's own lines are kept back, and so is everything from its report of a failure on, but for our own lines.
    """

    def __init__(self, source: IO[str], log: Path) -> None:
        self.log = log
        self.kept: list[str] = []
        """torchrun's lines before its report of a failure."""
        self._thread = threading.Thread(target=self._read, args=(source,), daemon=True, name="said")
        self._thread.start()

    def _read(self, source: IO[str]) -> None:
        hidden = False
        with open(self.log, "w", encoding="utf-8") as log:
            for line in source:
                log.write(line)
                log.flush()
                agent = _AGENT.match(line)
                hidden = hidden or bool(_REPORT.match(line)) or (agent is not None and agent[1] == "E")
                if agent is not None and not hidden:
                    self.kept.append(line.rstrip())
                elif not hidden or line.startswith("pipemare:"):
                    sys.stderr.write(line)
                    sys.stderr.flush()

    def wait(self, seconds: float) -> None:
        """Until every writer has ended, but no longer than `seconds`."""
        self._thread.join(seconds)

    def ended(self) -> list[str]:
        """How ranks ended by what torchrun reports, first the one that it takes for the cause."""
        text = self.log.read_text(encoding="utf-8", errors="replace")
        found = []
        for rank, code, pid in reversed(_ENDED.findall(text)):  # the cause stands last
            how = f"was killed by {_name(-int(code))}" if code.startswith("-") else f"ended with code {code}"
            if (line := f"rank {rank} (process {pid}) {how}") not in found:
                found.append(line)
        return found

    def last(self, count: int = 12) -> list[str]:
        """The last lines that say something, torchrun's framing left out."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return [line for line in lines if not _FRAME.match(line)][-count:]


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
