"""Waiting for torchrun: what is told of ranks that do not begin, do not meet, or end too early; a second Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from pipemare_exp.experiment.runtime import launch
from pipemare_exp.experiment.runtime.said import Said

WARNING = "[W1201 15:20:11.123456789 socket.cpp:767] [c10d] The hostname of the client socket cannot be retrieved."

REPORT = """\
W1201 15:20:10.1 77 torch/distributed/run.py:852] a setting
Traceback (most recent call last):
  File "/made/up/module.py", line 3, in <module>
ImportError: no such thing
E1201 15:20:12.1 77 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: -9) local_rank: 1
============================================================
pipemare_exp FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-12-01_15:20:12
  rank      : 0 (local_rank: 0)
  exitcode  : 1 (pid: 4242)
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-12-01_15:20:11
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 4243)
============================================================
"""


def job(folder: Path, code: str, ranks: int = 2) -> launch._Job:
    """A job whose torchrun is this Python code."""
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stderr is not None
    return launch._Job(process, folder, ranks, 0, Said(process.stderr, folder / "log.txt"))


def folder_in(place: Path) -> Path:
    folder = place / "pipemare-job-x"
    folder.mkdir()
    return folder


SILENT = f"import sys, time; print({WARNING!r}, file=sys.stderr, flush=True); time.sleep(600)"


@pytest.mark.parametrize(
    ("come", "text"),
    [
        ([], "pipemare: failed: ranks 0, 1 have not begun within 1 s of the start"),
        (["begun-0"], "pipemare: failed: rank 1 has not begun within 1 s of the start"),
        (["begun-0", "begun-1", "joined-0"], "pipemare: failed: rank 1 has not met the others within 2 s of the start"),
    ],
)
def test_ranks_that_do_not_begin_or_meet_are_given_up(
    come: list[str], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(launch, "LIMITS", {"begun": 1.0, "joined": 2.0})
    monkeypatch.setattr(launch, "PATIENCE", 0.5)
    folder = folder_in(tmp_path)
    for name in come:
        (folder / name).touch()
    one = job(folder, SILENT)
    while not one.said.kept:
        time.sleep(0.02)
    assert one.run() == 1
    assert one.process.poll() is not None
    errors = capfd.readouterr().err
    assert text in errors
    assert (f"  torchrun: {WARNING}" in errors) == (len(come) < 2)
    assert (tmp_path / "pipemare-failed-x.log").read_text() == WARNING + "\n"


def test_a_second_interrupt_kills_at_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    deaf = (
        "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)"
    )
    one = job(folder_in(tmp_path), "import sys; sys.stdout = sys.stderr; " + deaf)
    for what in ("begun", "joined"):
        for rank in range(2):
            (one.folder / f"{what}-{rank}").touch()

    def interrupt_twice() -> None:
        # Before the job takes signals, one would be lost or end the test.
        while "deaf" not in one.said.log.read_text() or signal.getsignal(signal.SIGINT) != one._pass_on:
            time.sleep(0.02)
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.5)

    while not one.said.log.exists():
        time.sleep(0.02)
    thread = threading.Thread(target=interrupt_twice)
    thread.start()
    assert one.run() == 130
    thread.join()
    assert one.process.returncode == -signal.SIGKILL
    assert "interrupted at once" in capfd.readouterr().err


def test_ranks_that_end_before_they_train_are_told_with_their_last_lines(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    one = job(folder_in(tmp_path), f"import sys; sys.stderr.write({REPORT!r}); sys.exit(1)")
    assert one.run() == 1
    lines = capfd.readouterr().err.splitlines()
    assert lines[:4] == [
        "pipemare: failed: the ranks ended before they could say why",
        "pipemare: torchrun: rank 1 (process 4243) was killed by SIGKILL",
        "pipemare: torchrun: rank 0 (process 4242) ended with code 1",
        "pipemare: the last lines of the ranks and of torchrun:",
    ]
    assert "  ImportError: no such thing" in lines
    assert lines[-1] == f"pipemare: the ranks' messages are in {tmp_path / 'pipemare-failed-x.log'}"


def test_what_ranks_say_is_shown_and_torchruns_own_lines_are_not(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text = f"{WARNING}\na warning of a rank\n{REPORT}pipemare: our own line\n"
    one = job(folder_in(tmp_path), f"import sys; sys.stderr.write({text!r})")
    assert one.run() == 0
    assert capfd.readouterr().err == "a warning of a rank\npipemare: our own line\n"
