"""The part of a checkpoint that ranks write: step-VERSION/rank-R.pt, with the states of a rank's stages."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from pipemare_exp.experiment.runs.checkpoint import read, write
from pipemare_exp.experiment.runs.reading import Damaged
from pipemare_exp.pipeline.runtime.inbox import RankFailure
from pipemare_exp.pipeline.runtime.rank import Runtime


def name(version: int, rank: int) -> str:
    """A rank's file of version t, from the folder of checkpoints."""
    return f"step-{version:08d}/rank-{rank}.pt"


def save(folder: Path, version: int, rank: int, states: dict[int, dict[str, Any]]) -> None:
    path = folder / name(version, rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path, {"stages": states})


def restore(runtime: Runtime, folder: Path, version: int) -> None:
    """Take the states of this rank's stages out of a checkpoint's files, whatever ranks wrote them."""
    written = (folder / name(version, 0)).parent
    states: dict[int, dict[str, Any]] = {}
    for path in sorted(written.glob("rank-*.pt")):
        try:
            saved = read(path)
        except Damaged:
            continue
        states |= {stage: state for stage, state in saved["stages"].items() if stage in runtime.stages}
        if len(states) == len(runtime.stages):
            break
    missing = sorted(set(runtime.stages) - set(states))
    if missing:
        raise RankFailure(f"{written} holds no readable state of stages {missing}")
    runtime.feed.start(version)
    runtime.restore(version, states)


def prune(folder: Path, keep: int) -> None:
    """Remove the ranks' files of checkpoints older than the newest `keep`."""
    for old in sorted(folder.glob("step-*"))[:-keep]:
        if old.is_dir():
            shutil.rmtree(old)
