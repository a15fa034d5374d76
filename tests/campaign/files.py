"""Damaged files: every file of a run, each kind of damage, every command that reads runs.

A command over a damaged run gives what it gives for the whole one, or it says what is wrong. What must never come out
is another number without a word.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

from tests.campaign.attempt import Outcome, judge
from tests.campaign.kills import at_write
from tests.campaign.processes import Done, Servant, command, run
from tests.campaign.trainings import BOUND, Undisturbed, difference, the_run, train

WEIGHT = 6
CASE = "best"  # it has the most files
COMMANDS = {
    "runs": 4, "compare": 3, "list": 1, "rows": 2, "report": 0.3, "eval": 4, "best": 1, "resume": 6, "track": 0.1,
    "translate": 1, "timeline": 1,
}  # fmt: skip
STOPPED = 30
"""The write before which the interrupted run was killed: it has a checkpoint and the one before."""


class Bench(Undisturbed):
    """A finished run, an interrupted one, and what commands say of them."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.finished = self.run(CASE)
        self.half = folder / "half"
        run(command(*train(CASE, self.half)), BOUND, setup=at_write(STOPPED))
        if the_run(self.half).result is not None:
            raise RuntimeError("the run that should be interrupted is finished: choose another write for it")
        self.servant = Servant(lines=100)
        self.said: dict[tuple[str, bool], Done] = {}

    def wanted(self, name: str, half: bool, folder: Path) -> Done:
        """What a command says of the run when it is whole."""
        if (name, half) not in self.said:
            self.said[name, half] = self.servant.run(
                _line(name, self.half if half else self.finished.path.parent, folder), BOUND
            )
        return self.said[name, half]

    def close(self) -> None:
        self.servant.close()


def prepare(folder: Path) -> Bench:
    return Bench(folder / "undisturbed")


def attempt(bench: Bench, random: Random, folder: Path) -> Outcome:
    """One damage, one command."""
    name = random.choices(list(COMMANDS), list(COMMANDS.values()))[0]
    half = name == "resume" or random.random() < 0.3
    whole = the_run(bench.half if half else bench.finished.path.parent)
    runs = folder / "runs"
    shutil.copytree(whole.path, runs / whole.name)
    files = sorted(path for path in (runs / whole.name).rglob("*") if path.is_file())
    target = random.choice(files)
    how = random.choice(list(DAMAGES))
    what = f"{target.relative_to(runs / whole.name)} {DAMAGES[how](target, random)}; {name}"
    line = _line(name, runs, folder)
    done = run(command(*line), BOUND) if name == "resume" else bench.servant.run(line, BOUND)
    outcome = judge(f"{what}: pipemare {' '.join(line)}", done)
    if outcome.kind != "equal":
        return outcome
    if name == "resume":
        kept = [one for one in (runs / whole.name).parent.glob("*/result.json")]
        found = difference(the_run(runs), bench.finished) if kept else "no result"
    else:
        found = _other(name, done, bench.wanted(name, half, folder), runs, bench)
    if found is None:
        return outcome
    told = any(
        word in outcome.said for word in ("damaged", "cannot be used", "passed over", "anew", "is missing", "is older")
    )
    kind = "detected" if told and name != "resume" else "silent"
    return Outcome(outcome.what, kind, f"differs: {found}\n{outcome.said}")


def _line(name: str, runs: Path, folder: Path) -> tuple[str, ...]:
    one, where = the_name(runs), ("--runs", str(runs))
    return {
        "runs": ("runs", "--json", *where),
        "compare": ("compare", "digits", "--json", *where),
        "list": ("figures", "--list", *where),
        "rows": ("figures", "--rows", str(folder / "rows"), *where),
        "report": ("report", "table2_digits", *where, "--out", str(folder / "page.html")),
        "eval": ("eval", one, "--json", *where),
        "best": ("eval", one, "--best", "--json", *where),
        "resume": train(CASE, runs),
        "track": ("track", *where, "--uri", f"sqlite:///{folder}/mlflow.db"),
        "translate": ("translate", one, *where),
        "timeline": ("timeline", one, *where),
    }[name]


def the_name(runs: Path) -> str:
    """The name of the only folder of runs."""
    return next(path.name for path in runs.iterdir() if not path.name.startswith("."))


def _other(name: str, done: Done, wanted: Done, runs: Path, bench: Bench) -> str | None:
    """Where numbers differ from those of the whole run; None where they do not, or where they are not compared."""
    if name in ("eval", "best", "runs", "compare"):
        values = []
        for one in (done, wanted):
            try:
                values.append(_plain(json.loads(one.out)))
            except ValueError:
                values.append(one.out)
        return None if values[0] == values[1] else f"{values[0]} and {values[1]}"
    return None


_UNCOMPARED = ("run", "seconds", "resumed_from", "metric")


def _plain(value: object) -> object:
    """JSON without places, times and the metric's name, which a run that has lost meta.json no longer says."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items() if key not in _UNCOMPARED}
    return [_plain(item) for item in value] if isinstance(value, list) else value


def _truncate(path: Path, random: Random) -> str:
    size = random.randint(0, max(path.stat().st_size - 1, 0))
    os.truncate(path, size)
    return f"truncated to {size} bytes"


def _flip(path: Path, random: Random) -> str:
    data = bytearray(path.read_bytes())
    if not data:
        return "left empty as it is"
    place, bit = random.randrange(len(data)), random.randrange(8)
    data[place] ^= 1 << bit
    path.write_bytes(data)
    return f"with bit {bit} of byte {place} flipped"


def _zeros(path: Path, random: Random) -> str:
    size = path.stat().st_size
    first = random.randint(0, size)
    with open(path, "r+b") as file:
        file.seek(first)
        file.write(bytes(min(random.choice((1, 512, 4096, size)), size - first)))
    return f"with zeros from byte {first}"


def _wrong(path: Path, random: Random) -> str:
    text = random.choice(("[1]", "{}", "null", "3", '"x"', "[[]]", '{"a": {"b": 1}}', "NaN", "[" * 100_000,
    "1" * 5000, "- a\n- b\n",
                          "a: &a [*a]", "x: 2026-13-45", '{"state": {}}', '{"outcome": []}', "<html>",
                          "true\n"))  # fmt: skip
    path.write_text(text)
    return f"holding {text[:20]}"


def _bytes(path: Path, random: Random) -> str:
    path.write_bytes(
        random.choice(
            (b"\xff\xfe\x00", b"\xfc: 1\n", random.randbytes(300), b"\x00" * 64, b"PK\x03\x04" + random.randbytes(99))
        )
    )
    return "holding bytes that are no text"


def _folder(path: Path, random: Random) -> str:
    path.unlink()
    path.mkdir()
    return "a folder"


def _gone(path: Path, random: Random) -> str:
    path.unlink()
    return "gone"


def _loop(path: Path, random: Random) -> str:
    path.unlink()
    path.symlink_to(path)
    return "a link to itself"


def _empty(path: Path, random: Random) -> str:
    path.write_bytes(b"")
    return "empty"


def _swapped(path: Path, random: Random) -> str:
    other = random.choice([one for one in sorted(path.parent.iterdir()) if one.is_file()])
    path.write_bytes(other.read_bytes())
    return f"holding what {other.name} holds"


DAMAGES: dict[str, Callable[[Path, Random], str]] = {
    "flipped": _flip, "flipped too": _flip, "truncated": _truncate, "zeros": _zeros, "wrong": _wrong, "bytes": _bytes,
    "folder": _folder, "gone": _gone, "loop": _loop, "empty": _empty, "swapped": _swapped,
}  # fmt: skip
