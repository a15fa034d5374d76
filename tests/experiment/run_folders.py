"""Writes run folders by hand, in the documented format: for tests of what reads them."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from pipemare_exp import metrics
from pipemare_exp.experiment.runs.folder import Run

SWITCHES = {
    "gpipe": (0, 0, 0),
    "async": (0, 0, 0),
    "t1": (1, 0, 0),
    "t1+t2": (1, 1, 0),
    "t1+t2+t3": (1, 1, 1),
}


def config(method: str, seed: int, task: str = "digits", **more: Any) -> dict[str, Any]:
    """A resolved configuration, cut down to what readers look at."""
    t1, t2, t3 = SWITCHES.get(method, (0, 0, 0))
    return {
        "seed": seed,
        "scale": "demo",
        "epochs": 2,
        "runs": None,
        "task": {"name": task},
        "method": {
            "name": method if method in ("gpipe", "pipedream") else "pipemare",
            "label": method,
            "lr_rescheduling": {"enabled": bool(t1)},
            "discrepancy_correction": {"enabled": bool(t2)},
            "sync_warmup": {"enabled": bool(t3)},
        },
        "pipeline": {"stages": 4, "microbatches": 4, "slots": "duplex", "boundaries": [0, 1, 2, 3]},
        "optimizer": {"name": "sgd", "rate": 0.05},
        "tracking": {"name": "none", "uri": None, "experiment": "pipemare"},
        "checkpoint": {"every_steps": 10, "keep": 1},
        **more,
    }


def write_run(
    root: Path,
    method: str = "gpipe",
    seed: int = 0,
    scores: Sequence[float] = (90.0, 95.0),
    outcome: str = "finished",
    name: str | None = None,
    notes: dict[str, str] | None = None,
    test: dict[str, float] | None = None,
    metric: str = "accuracy",
    **more: Any,
) -> Run:
    """A run of len(scores) epochs of 10 steps. `more` replaces parts of the configuration."""
    path = root / (name or f"digits-{method.replace('+', '_')}-demo-s{seed}-{zlib.crc32(repr(more).encode()):08x}")
    path.mkdir(parents=True)
    (path / "config.yaml").write_text(yaml.safe_dump(config(method, seed, **more)))
    (path / "overrides.json").write_text(json.dumps(["task=digits", f"method={method}", f"seed={seed}"]))
    meta = {
        "command": "pipemare train",
        "commit": "c0ffee",
        "dirty": False,
        "created": "2026-01-02T03:04:05+00:00",
        "metric": metric,
    }
    (path / "meta.json").write_text(json.dumps(meta | ({"notes": notes} if notes else {})))
    rows: list[dict[str, Any]] = []
    for epoch, score in enumerate(scores, start=1):
        rows += [
            {
                "kind": "train",
                "step": 10 * epoch - k,
                "epoch": epoch,
                "loss": 1 / epoch,
                "rate": 0.05,
                "seconds": epoch,
            }
            for k in (5, 0)
        ]
        rows.append({"kind": "eval", "step": 10 * epoch, "epoch": epoch, "split": "test", "loss": 0.5,
                     metric: score, "seconds": epoch})  # fmt: skip
    step, epoch = 10 * len(scores), len(scores)
    if outcome == "diverged":
        rows.append({"kind": "outcome", "outcome": "diverged", "step": step + 3, "epoch": epoch})
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (path / "status.json").write_text(json.dumps({"state": outcome, "pid": 1, "step": step, "updated": 1767323105.0}))
    if outcome in ("finished", "diverged"):
        result = {
            "outcome": outcome, "step": step, "epoch": epoch, "metric": metric, "best": metrics.of(metric).best(scores),
            "last": scores[-1], "test": test or {metric: scores[-1]}, "config_hash": "ab" * 32,
            "seed": seed, "method": method, "task": "digits", "scale": "demo", "seconds": 3.5,
            "resumed_from": [],
        }  # fmt: skip
        (path / "result.json").write_text(json.dumps(result))
    return Run(path)
