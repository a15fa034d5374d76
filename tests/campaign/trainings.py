"""Small trainings, what they come to when nothing disturbs them, and whether another came to the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pipemare_exp.experiment.runs.folder import Run, find_runs
from tests.campaign.processes import Done, command, run

BOUND = 300.0
_SHORT = (
    "progress=none", "tracking=none", "epochs=2", "log_every=4", "pipeline.microbatches=4", "checkpoint.every_steps=3",
)  # fmt: skip
_DIGITS = ("task=digits", "model.width=2", "max_steps=13", *_SHORT)
_NUMERALS = ("task=numerals", "data.pairs=1000", "data.max_tokens=400", "model.width=16", "model.feedforward=16",
             "model.layers=1", "max_steps=7", "evaluation.sentences=4", "evaluation.beam=1", *_SHORT)  # fmt: skip

CASES: dict[str, tuple[str, ...]] = {
    "gpipe": (*_DIGITS, "method=gpipe"),
    "pipedream": (*_DIGITS, "method=pipedream"),
    "async": (*_DIGITS, "method=async", "data.augment=true"),
    "pipemare": (*_DIGITS, "method=pipemare", "data.augment=true"),
    "recomputing": (*_DIGITS, "method=t1_t2", "pipeline.recompute=sqrt"),
    "hogwild": (*_DIGITS, "method=hogwild_t1"),
    "split": (*_DIGITS, "method=t1_t2", "pipeline.split=2"),
    "best": (
        *_DIGITS,
        "method=t1",
        "checkpoint.best=true",
        "checkpoint.keep=2",
        "optimizer=adamw",
        "optimizer.rate=0.001",
    ),
    "translation": (*_NUMERALS, "method=pipemare", "evaluation.average=2"),
    "translation-gpipe": (*_NUMERALS, "method=gpipe"),
}
"""The command lines of `pipemare train`, by name."""


def train(case: str, runs: Path, *more: str) -> tuple[str, ...]:
    """The command line of a case."""
    return ("train", *CASES[case], *more, "--runs", str(runs))


class Undisturbed:
    """The runs that nothing disturbed, each trained when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seconds: dict[str, float] = {}

    def run(self, case: str) -> Run:
        """The finished run of a case."""
        runs = self.folder / case
        if case not in self.seconds:
            done = run(command(*train(case, runs)), BOUND)
            if done.code != 0:
                raise RuntimeError(f"{case} does not train undisturbed:\n{done.err}{done.out}")
            self.seconds[case] = done.seconds
        return the_run(runs)

    def close(self) -> None:
        pass


def the_run(runs: Path) -> Run:
    """The only run in a folder."""
    found = find_runs(runs)
    if len(found) != 1:
        raise RuntimeError(f"{runs} holds {[one.name for one in found]}")
    return found[0]


def difference(left: Run, right: Run) -> str | None:
    """Where the weights, the whole state, the rows and the result of two runs differ; None where nowhere."""
    try:
        states = [torch.load(one.checkpoints / "last.pt", weights_only=True) for one in (left, right)]
    except Exception as error:
        return f"last.pt cannot be read: {error}"
    found = _difference(*states, "last.pt") or _difference(left.metrics(), right.metrics(), "metrics.jsonl")
    results = [dict(one.result or {}) for one in (left, right)]
    for result in results:
        result.pop("resumed_from", None)
    return found or _difference(*results, "result.json")


def _difference(left: Any, right: Any, where: str) -> str | None:
    if isinstance(left, Tensor) and isinstance(right, Tensor):
        return None if torch.equal(left, right) else where
    if isinstance(left, dict) and isinstance(right, dict) and left.keys() == right.keys():
        timeless = (key for key in left if key not in ("seconds", "sha256", "memory", "peak_memory"))
        return next(
            (found for key in timeless if (found := _difference(left[key], right[key], f"{where}.{key}"))), None
        )
    if isinstance(left, list | tuple) and isinstance(right, list | tuple) and len(left) == len(right):
        pairs = enumerate(zip(left, right, strict=True))
        return next((found for k, pair in pairs if (found := _difference(*pair, f"{where}[{k}]"))), None)
    return None if left == right else f"{where}: {str(left)[:60]} and {str(right)[:60]}"


def scores(done: Done) -> dict[str, Any]:
    """What `eval --json` found, without where."""
    found = json.loads(done.out)
    found.pop("run")
    return found


def unfinished(folder: Path) -> list[str]:
    """Unfinished files of writes that a kill ended, which the next session should have removed."""
    return [str(path.relative_to(folder)) for path in folder.rglob("*.tmp")]
