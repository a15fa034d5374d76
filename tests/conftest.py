"""What every test shares: one thread, so that results are repeatable beside other processes, and the real data."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The folder of prepared real data, or a skip that says how to get it."""
    root = os.environ.get("PIPEMARE_DATA")
    if not root or not Path(root).is_dir():
        pytest.skip("real data absent: set PIPEMARE_DATA to a folder that `pipemare data prepare` filled")
    return Path(root)
