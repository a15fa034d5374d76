"""Real tiny runs for the figures: digits, a narrow pipeline, two epochs, several methods, seeds and rates."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from pipemare_exp import cli

COMMON = [
    "scale=demo",
    "epochs=2",
    "data.batch_size=256",
    "pipeline.stages=6",
    "pipeline.microbatches=4",
    "tracking=none",
    "threads=1",
    "progress=none",
    "device=cpu",
]
RUNS = [
    *(("gpipe", seed, []) for seed in (0, 1, 2)),
    *(("pipemare", seed, []) for seed in (0, 1, 2)),
    *((method, 0, []) for method in ("pipedream", "async", "t1", "t2", "t1_t2")),
    # A rate no method survives, for one seed of two: half of this method's runs diverge.
    ("t1", 0, ["optimizer.rate=1000"]),
    ("t1", 0, ["optimizer.rate=0.01"]),
    ("t1", 1, ["optimizer.rate=0.01"]),
    *((name, 0, [f"method.delay_scale={s}"]) for name in ("hogwild", "hogwild_t1") for s in (0.5, 2.0)),
    ("t1", 0, ["pipeline.recompute=2"]),
]


@pytest.fixture(scope="session")
def tiny_runs(tmp_path_factory) -> Path:
    """A folder of finished and diverged run directories."""
    root = tmp_path_factory.mktemp("figures") / "runs"
    for method, seed, more in RUNS:
        overrides = ["task=digits", f"method={method}", f"seed={seed}", f"runs={root}", *COMMON, *more]
        assert cli.main(["train", *overrides]) == 0
    return root


def read_csv(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file as text."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def table():
    """`read_csv`, for the tests."""
    return read_csv
