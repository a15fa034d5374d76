"""What does a training do on a full disk? It says so, leaves no half of a file, and goes on once there is room."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pipemare_exp.experiment.training import assemble
from tests.experiment.tiny_training import TINY, run_once

OVERRIDES = [*TINY, "method=gpipe", "max_steps=7"]


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Writes beyond `size` fail as they do on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_full_disk_at_a_checkpoint_is_said_and_recorded_and_leaves_no_part_of_it(tmp_path: Path) -> None:
    with largest_file(8000):  # room for the small files only
        done, said = run_once(OVERRIDES, tmp_path)
    assert (done.outcome, done.exit_code) == ("failed", 1)
    assert "File too large" in said and "make room" in said and "Traceback" not in said
    assert done.run.status["error"] in said
    assert list(done.run.checkpoints.iterdir()) == []
    again, _ = run_once(OVERRIDES, tmp_path)
    assert again.outcome == "finished"


def test_a_full_disk_that_takes_nothing_at_all_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = assemble.Emulator.step

    def filling(self, *args, **kwargs):
        if self.version == 4:
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        return original(self, *args, **kwargs)

    with monkeypatch.context() as patch, largest_file(1 << 30):
        patch.setattr(assemble.Emulator, "step", filling)
        done, said = run_once(OVERRIDES, tmp_path)
    assert (done.outcome, done.exit_code) == ("failed", 1)
    assert "cannot tell of the failure: File too large" in said
    assert done.run.outcome == "interrupted"
    again, said = run_once(OVERRIDES, tmp_path)
    assert again.outcome == "finished" and "resumed from step 3" in said
