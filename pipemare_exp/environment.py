"""Which environment variables are ours, and did torchrun start this process?

A cluster presets variables of its own, among them RANK and WORLD_SIZE (MPI, Slurm's plugins, a batch system's
templates). Only the ones named here mean something to this package.
"""

from __future__ import annotations

import os

RUNS = "PIPEMARE_RUNS"
DATA = "PIPEMARE_DATA"
COMMIT = "PIPEMARE_COMMIT"
"""The commit to record where the code is a copy without its history."""
FAILURES = "PIPEMARE_FAILURES"
"""The folder in which ranks leave word for `pipemare train`, which started them."""
STARTER = "PIPEMARE_STARTER"
"""The number of the process that started this one (tied.py)."""

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
"""Other programs' variables that torch heeds for its number of threads."""

TORCHRUN = ("TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
"""torchrun sets all of these for each rank, and nothing else sets the first."""


def started_by_torchrun() -> bool:
    """Whether this process is a rank: RANK alone may be a cluster's."""
    return all(name in os.environ for name in TORCHRUN)


def mark(what: str) -> None:
    """Leave word for `pipemare train`, if it started this rank, that the rank has come so far."""
    folder = os.environ.get(FAILURES)
    if folder:
        with open(os.path.join(folder, f"{what}-{os.environ['RANK']}"), "wb"):
            pass
