"""What is an attempt, and how is its outcome judged?

An attempt does one thing to the project that it must survive: a kill, a damaged file, a command line that no one would
write. Whatever it is, a command must end within a bound, with an exit code that is documented, without a traceback, and
either with the same result as an undisturbed command or with a message.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from tests.campaign.processes import Done

CODES = (0, 1, 2, 129, 130, 138, 141, 143)
"""The exit codes of docs/output.md: done, failed, a mistake, 128 + a signal that asks for an end or a lost reader."""

GOOD = ("equal", "detected")
BAD = ("traceback", "hang", "exit code", "silent", "left behind")
"""equal: the result is the undisturbed one. detected: a message said what is wrong, and no result was given. silent:
the result is another one and nothing was said. left behind: a process or a file that should be gone or not be there."""


@dataclass(frozen=True)
class Outcome:
    """How an attempt ended: one of GOOD or BAD; `tried` is how many disturbances it made, such as kills."""

    what: str
    kind: str
    said: str = ""
    tried: int = 1

    @property
    def bad(self) -> bool:
        return self.kind in BAD


def judge(what: str, done: Done, codes: tuple[int, ...] = CODES) -> Outcome:
    """The outcome of a command by itself: `equal` where it ended with 0, `detected` where a message tells why not."""
    said = (done.err + done.out)[-3000:]
    if done.hung:
        return Outcome(what, "hang", f"not through after {done.seconds:.0f} s\n{said}")
    if "Traceback (most recent call last)" in done.err + done.out:
        return Outcome(what, "traceback", said)
    if done.code not in codes:
        return Outcome(what, "exit code", f"exit code {done.code}\n{said}")
    if done.left:
        return Outcome(what, "left behind", f"processes still there: {done.left}\n{said}")
    if done.code == 0:
        return Outcome(what, "equal", said)
    if not done.err.strip() and not done.out.strip():
        return Outcome(what, "silent", f"exit code {done.code} without a word")
    return Outcome(what, "detected", said)


def source(seed: int, family: str, number: int) -> Random:
    """The random numbers of one attempt, which depend on nothing that came before it."""
    return Random(f"{seed} {family} {number}")
