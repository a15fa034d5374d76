"""Which settings make two runs the same run, and the name that follows from them."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from pipemare_exp import methods
from pipemare_exp.experiment.config.load import to_mapping
from pipemare_exp.experiment.config.schema import Config

NOT_IDENTITY = (
    "runs",
    "tracking",
    "progress",
    "log_every",
    "checkpoint",
    "diagnostics",
    "data.root",
    "data.changed",
    "threads",
    "engine.ranks",
    "engine.flush",
    "engine.timeout",
    "engine.max_restarts",
    "engine.graphs",
    "engine.history",
)
"""Settings that cannot change what is learnt. engine.graphs replays the kernels of the eager step in their order, bit
for bit (`pipemare gpu graphs` compares them on the machine at hand), and engine.history only copies. The number of
threads may change the last bits of a sum on some machines, as the machine itself may; both are recorded in meta.json
and neither names a run."""


def identity(cfg: Config) -> dict[str, Any]:
    """What names a run: the resolved configuration less NOT_IDENTITY and less what is not set (None)."""
    return _pruned(to_mapping(cfg), "")


def _pruned(tree: dict[str, Any], path: str) -> dict[str, Any]:
    kept = {}
    for key, value in tree.items():
        where = f"{path}{key}"
        if where in NOT_IDENTITY or value is None:
            continue
        inner = _pruned(value, f"{where}.") if isinstance(value, dict) else value
        if inner != {}:
            kept[key] = inner
    return kept


def config_hash(cfg: Config) -> str:
    """sha256 (hexadecimal) of the canonical JSON of `identity(cfg)`."""
    canonical = json.dumps(identity(cfg), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


def run_name(cfg: Config) -> str:
    """The name of the run's folder: <task>-<method>-<scale>-s<seed>-<hash8>; <task>_<examples> on a subset."""
    assert cfg.method.label is not None, "resolve the configuration first"
    name = methods.file_of(cfg.method.label)
    task = f"{cfg.task.name}_{cfg.data.subset}" if cfg.data.subset else cfg.task.name
    return f"{task}-{name}-{cfg.scale}-s{cfg.seed}-{config_hash(cfg)[:8]}"
