"""What does a run's folder say of the run before its first step? Written once, and anew where it is damaged."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pipemare_exp.data.digests import Input
from pipemare_exp.errors import UserError
from pipemare_exp.experiment.config import yaml_text
from pipemare_exp.experiment.config.identity import config_hash
from pipemare_exp.experiment.config.load import from_mapping, to_mapping
from pipemare_exp.experiment.config.schema import Config
from pipemare_exp.experiment.runs import provenance
from pipemare_exp.experiment.runs.credentials import hide
from pipemare_exp.experiment.runs.folder import Run
from pipemare_exp.experiment.runs.reading import Damaged
from pipemare_exp.experiment.runs.same_data import Other
from pipemare_exp.experiment.runs.writing import write_json, write_text
from pipemare_exp.experiment.training.assemble import Prepared
from pipemare_exp.experiment.training.threads import Choice

Say = Callable[[str], None]


def write_what_is_missing(run: Run, cfg: Config, overrides: Sequence[str], say: Say) -> None:
    """Write config.yaml and overrides.json where they are not there or damaged."""
    if not readable(lambda: _same_config(run, cfg), say):
        write_text(run.path / "config.yaml", yaml_text.dumps(hide(to_mapping(cfg))))
    if not readable(lambda: run.overrides, say):
        write_json(run.path / "overrides.json", hide(list(overrides)))


def readable(read: Callable[[], Any], say: Say) -> Any:
    """What a file of the run holds; None, which is said, for one that is damaged: it is written anew."""
    try:
        return read()
    except Damaged as error:
        say(f"{error.path} is damaged ({error.reason}) and is written anew")
        return None


def _same_config(run: Run, cfg: Config) -> bool:
    """Whether config.yaml is there. Raises Damaged where it is not the whole configuration of this run."""
    tree = run.config
    try:
        there = from_mapping(tree)
        same = to_mapping(there) == tree and config_hash(there) == config_hash(cfg)
    except UserError:
        same = False
    if tree and not same:
        raise Damaged(run.path / "config.yaml", "it is not the whole configuration of this run")
    return bool(tree)


def new_meta(
    prepared: Prepared, identity: str, overrides: Sequence[str], threads: Choice, inputs: Mapping[str, Input]
) -> dict[str, Any]:
    """meta.json of a run that begins; `identity` is its configuration's hash, `inputs` are what it reads."""
    commit, dirty = provenance.commit()
    return {
        "command": shlex.join(["pipemare", "train", *hide(list(overrides))]),
        "commit": commit,
        "dirty": dirty,
        "versions": provenance.versions(),
        "machine": provenance.machine(),
        "threads": threads.count,
        "threads_from": threads.why,
        "created": _now(),
        "config_hash": identity,
        "metric": prepared.task.metric,
        "notes": dict(prepared.task.notes),
        "data": {name: one.as_json() for name, one in inputs.items()},
        "sessions": [],
    }


def new_session(resumed_from: int | None, other: Other) -> dict[str, Any]:
    """What meta.json keeps of one session: when, with which commit, from which step it went on, and `other` data."""
    session = {"started": _now(), "commit": provenance.commit()[0], "resumed_from": resumed_from}
    return session | ({"other_data": other} if other else {})


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
