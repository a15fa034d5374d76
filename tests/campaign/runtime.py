"""Kills of the processes of a runtime run: the command, torchrun, a rank, or all of them."""

from __future__ import annotations

from pathlib import Path
from random import Random

from tests.campaign.attempt import Outcome
from tests.campaign.runtime_kills import Reference, chain, undisturbed

WEIGHT = 4


class Bench:
    """The undisturbed run, trained when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "undisturbed"
        self.reference: Reference | None = None

    def run(self) -> Reference:
        if self.reference is None:
            self.folder.mkdir()
            self.reference = undisturbed(self.folder)
        return self.reference

    def close(self) -> None:
        pass


def prepare(folder: Path) -> Bench:
    return Bench(folder)


def attempt(bench: Bench, random: Random, folder: Path) -> Outcome:
    """One to three kills of one run."""
    done = chain(random, bench.run(), folder, random.randint(1, 3))
    what = ", ".join(f"SIGKILL to {one.victim} after {one.moment:.1f} s" for one in done)
    said = "\n".join(one.said for one in done if one.said)
    if any(one.gone_after is None for one in done):
        return Outcome(what, "left behind", said, len(done))
    return Outcome(what, "equal" if all(one.equal for one in done) else "silent", said, len(done))
