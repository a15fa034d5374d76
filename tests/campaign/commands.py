"""Random command lines: what the parsers take, what the configuration takes, and what nobody would write.

Commands that would train or measure for minutes are stopped where their work would begin: what is tried is how they
take their arguments.
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

from pipemare_exp import cli
from tests.campaign.attempt import Outcome, judge
from tests.campaign.processes import Servant
from tests.campaign.settings import override
from tests.campaign.words import nonsense, number, word

WEIGHT = 5
BOUND = 60.0

# What a command does once its arguments are taken: (module, name), replaced by an end.
WORK = (
    ("pipemare_exp.experiment.training.session", "train"), ("pipemare_exp.experiment.runtime.launch", "launch"),
    ("pipemare_exp.commands.sweep", "train"), ("pipemare_exp.bench.emulator", "compare"),
    ("pipemare_exp.bench.emulator", "in_processes"), ("pipemare_exp.bench.scaling", "scaling"),
    ("pipemare_exp.bench.runtime", "latency"), ("pipemare_exp.bench.runtime_compute", "compute"),
    ("pipemare_exp.bench.runtime_memory", "memory"), ("pipemare_exp.gpu_check.equality", "check"),
    ("pipemare_exp.gpu_check.captured", "check"), ("pipemare_exp.gpu_check.speed", "table"),
    ("pipemare_exp.gpu_check.speed", "epoch"), ("pipemare_exp.gpu_check.cells", "train"),
    ("pipemare_exp.data.fetch", "_download"), ("pipemare_exp.report.page", "build"),
    ("pipemare_exp.pipeline.runtime.measure", "piece_seconds"),
)  # fmt: skip


class Bench:
    """A process that takes command lines, and one that does so with its work cut off."""

    def __init__(self, folder: Path) -> None:
        self.runs = folder / "runs"
        self.runs.mkdir()
        self.servant = Servant(setup=_stop_before_work)

    def close(self) -> None:
        self.servant.close()


def prepare(folder: Path) -> Bench:
    return Bench(folder)


def attempt(bench: Bench, random: Random, folder: Path) -> Outcome:
    """One command line."""
    kind = random.choices(("parser", "settings", "nonsense"), (5, 4, 2))[0]
    if kind == "settings":
        line = _settings(random)
    elif kind == "parser":
        line = _parsed(random, folder)
    else:
        line = _nonsense(random)
    done = bench.servant.run(line, BOUND, cwd=folder)
    what = f"pipemare {' '.join(map(repr, line))}"
    if "\x1b" in done.out + done.err:
        return Outcome(what, "silent", f"a control character was printed: {done.out + done.err!r}")
    return judge(what, done, codes=(0, 1, 2) if "check" in line else (0, 2))


def _settings(random: Random) -> list[str]:
    """`train --cfg` with some settings of the configuration, most of them within their ranges."""
    groups = (
        [f"task={random.choice(('digits', 'digits', 'digits', 'numerals', word(random)))}"]
        if random.random() < 0.9
        else []
    )
    wild = random.choice((0.0, 0.1, 0.5))
    return ["train", "--cfg", *groups, *(override(random, wild) for _ in range(random.randint(1, 5)))]


def _parsed(random: Random, folder: Path) -> list[str]:
    """Options of a command as its own parser declares them, with values of their kinds and of none."""
    name = random.choice([name for name in cli.available() if name != "completion"] + ["completion"])
    parser = argparse.ArgumentParser()
    module = import_module(f"pipemare_exp.commands.{name}")
    module.add_arguments(parser)
    line = [name, *_arguments(random, parser)]
    if name in ("train", "sweep") and random.random() < 0.8:
        line.append("--cfg" if name == "train" else "--dry-run")
    if name in ("report", "figures") and "--list" not in line:  # to draw takes seconds
        line.append("--list" if name == "figures" else random.choice(("table1", "--nothing", "no_such_figure")))
    return line


def _arguments(random: Random, parser: argparse.ArgumentParser) -> list[str]:
    line: list[str] = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            if random.random() < 0.95:
                chosen = random.choice(list(action.choices))
                return [*line, chosen, *_arguments(random, action.choices[chosen])]
            return [*line, word(random)]
        positional = not action.option_strings
        if isinstance(action, argparse._HelpAction) or random.random() > (0.9 if positional else 0.3):
            continue
        count = random.randint(1, 3) if action.nargs in ("*", "+") else 0 if action.nargs == 0 else 1
        values = [_value(random, action) for _ in range(count)]
        line += values if positional else [random.choice(action.option_strings), *values]
    return line


def _value(random: Random, action: argparse.Action) -> str:
    if action.choices and random.random() < 0.8:
        return str(random.choice(list(action.choices)))
    if action.type in (int, float) and random.random() < 0.9:
        return number(random)
    if action.dest in ("words", "overrides", "set") and random.random() < 0.8:
        return random.choice((override(random, 0.3), f"seeds={number(random)}", f"seeds=[{number(random)}]",
                              f"jobs={number(random)}", f"launcher.{word(random)}={word(random)}",
                              word(random)))  # fmt: skip
    return word(random)


def _nonsense(random: Random) -> list[str]:
    name = random.choice([*cli.available(), nonsense(random)])
    extra = ["--cfg"] if name == "train" else ["--dry-run"] if name == "sweep" else []
    return [name, *(nonsense(random) for _ in range(random.randint(0, 4))), *extra]


class Work(SystemExit):
    """The arguments were taken."""


def _stop_before_work() -> None:
    def stop(*args: Any, **kwargs: Any) -> Any:
        raise Work(0)

    for module, name in WORK:
        loaded = sys.modules.get(module) or import_module(module)
        assert hasattr(loaded, name), f"{module} has no {name}"
        setattr(loaded, name, stop)
