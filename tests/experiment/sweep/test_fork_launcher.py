"""Cells as forks of one process: their order, how many at a time, what becomes of those that die or are killed."""

import os
import signal
import time
from pathlib import Path

import pytest

from pipemare_exp.experiment.sweep import fork_launcher, fork_server
from pipemare_exp.experiment.sweep.worker import DIED_TWICE, Batch

pytestmark = pytest.mark.skipif(not fork_server.AVAILABLE, reason="forks of a server: on Linux")


def batch(folder: Path, *names: str) -> Batch:
    return Batch(
        tuple((name,) for name in names),
        tuple(str(folder / name) for name in names),
        str(folder / "stop"),
        os.getpid(),
        True,
    )


def stands_in(number: int, batch: Batch) -> str | None:
    """For a training: notes its beginning and its end, and dies or fails as its name says."""
    name, folder = batch.overrides[number][0], Path(batch.runs[number]).parent
    attempt = len(list(folder.glob(f"{name}.began*")))
    (folder / f"{name}.began{attempt}").write_text(str(time.monotonic()))
    if name == "deadly" or (name == "unlucky" and attempt == 0):
        os.kill(os.getpid(), signal.SIGKILL)
    if name == "waits":
        while not Path(batch.stop_file).exists():
            time.sleep(0.02)
        time.sleep(0.3)
    (folder / f"{name}.ended").write_text(str(time.monotonic()))
    return "its folder is full" if name == "full" else None


def test_every_job_is_answered_and_one_that_dies_is_tried_once_more(tmp_path):
    names = ("a", "deadly", "unlucky", "full", "b")
    answers = fork_launcher.train(batch(tmp_path, *names), 2, lambda: False, stands_in)
    assert answers == [None, DIED_TWICE, None, "its folder is full", None]
    assert {path.stem for path in tmp_path.glob("*.ended")} == {"a", "unlucky", "full", "b"}


def test_one_at_a_time_they_run_in_their_order(tmp_path):
    fork_launcher.train(batch(tmp_path, "c", "a", "b"), 1, lambda: False, stands_in)
    times = [(tmp_path / f"{n}.{w}").read_text() for n in "cab" for w in ("began0", "ended")]
    assert [float(one) for one in times] == sorted(map(float, times))


def test_a_folder_that_cannot_be_made_is_told_and_stops_no_other(tmp_path):
    (tmp_path / "a").write_text("in the way")
    told, other = fork_launcher.train(batch(tmp_path, "a", "b"), 1, lambda: False, stands_in)
    assert told is not None and "cannot write the run folder" in told and other is None


def test_after_the_wish_to_stop_none_begins_and_those_that_run_are_waited_for(tmp_path):
    def stopped() -> bool:
        if len(list(tmp_path.glob("*.began0"))) == 1:
            (tmp_path / "stop").touch()
        return (tmp_path / "stop").exists()

    fork_launcher.train(batch(tmp_path, "waits", "b"), 1, stopped, stands_in)
    assert (tmp_path / "waits.ended").exists() and not (tmp_path / "b.began0").exists()


def test_an_exception_leaves_no_training_behind(tmp_path):
    began = []

    def stopped() -> bool:
        began.extend(tmp_path.glob("*.began0"))
        if began:
            raise KeyboardInterrupt  # a second Ctrl-C
        return False

    with pytest.raises(KeyboardInterrupt):
        fork_launcher.train(batch(tmp_path, "waits"), 1, stopped, stands_in)
    (tmp_path / "stop").touch()
    time.sleep(0.6)
    assert not (tmp_path / "waits.ended").exists()
