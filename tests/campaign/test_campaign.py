"""A short slice of the campaign, the same attempts each time. The whole of it: `make campaign HOURS=4`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.campaign import families
from tests.campaign.attempt import BAD, judge, source
from tests.campaign.processes import Done, run, start

SLICE = {
    "commands": 40, "files": 6, "hostile": 8, "storage": 1, "kills": 1, "environment": 1,
    "concurrency": 1, "runtime": 1,
}  # fmt: skip

SLOW = pytest.mark.slow  # it waits for processes that import torch


def test_the_slice_covers_every_family() -> None:
    assert set(SLICE) == set(families.NAMES)


@pytest.mark.parametrize("family", [pytest.param(name, marks=SLOW if name == "runtime" else ()) for name in SLICE])
def test_a_slice_of_each_family_holds(family: str, tmp_path: Path) -> None:
    """In a process of its own: it forks, which a process that has trained must not."""
    out = tmp_path / "figures.json"
    line = [sys.executable, "-m", "tests.campaign", "--only", family, "--most", str(SLICE[family]), "--hours", "1"]
    done = subprocess.run(
        [*line, "--out", str(out), "--folder", str(tmp_path / "work")], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(out.read_text())["figures"][family]
    assert figures["attempts"] == SLICE[family] and not any(figures[kind] for kind in BAD)


@pytest.mark.parametrize(
    ("done", "kind"),
    [
        (Done(0, "", "", 1.0), "equal"),
        (Done(2, "", "pipemare: error: no", 1.0), "detected"),
        (Done(1, "", "Traceback (most recent call last):\n", 1.0), "traceback"),
        (Done(139, "", "", 1.0), "exit code"),
        (Done(0, "", "", 60.0, hung=True), "hang"),
        (Done(2, "", "", 1.0), "silent"),
        (Done(0, "", "", 1.0, left=(17,)), "left behind"),
    ],
)
def test_an_outcome_is_judged(done: Done, kind: str) -> None:
    assert judge("it", done).kind == kind


def test_an_attempt_draws_the_same_whatever_came_before() -> None:
    assert source(3, "files", 7).random() == source(3, "files", 7).random() != source(3, "files", 8).random()


def test_a_process_that_does_not_end_is_ended_and_one_that_leaves_children_is_told() -> None:
    def sleep() -> int:
        import time

        time.sleep(60)
        return 0

    def leave() -> int:
        import os

        if os.fork() == 0:
            sleep()
        return 0

    assert run(sleep, 0.2).hung
    assert run(leave, 5.0).left
    started = start(sleep)
    assert started.kill() and started.wait(5.0).code == 137
