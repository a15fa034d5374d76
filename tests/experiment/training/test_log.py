"""RUN/train.log has what was said, with times; --quiet says nothing else; a line tells the peak of memory."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

from pipemare_exp import cli
from pipemare_exp.experiment.training import assemble
from pipemare_exp.experiment.training.log import RunLog
from pipemare_exp.experiment.training.memory import peak_in_words, peak_resident
from tests.experiment.tiny_training import TINY, run_once


def lines(run: Path) -> list[str]:
    """The log's lines without their times, each of which must have one."""
    found = [
        re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d (.*)", line)
        for line in (run / "train.log").read_text().splitlines()
    ]
    assert all(found)
    return [one[1] for one in found if one]


def test_the_log_has_what_was_said_and_a_later_session_adds_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, left = assemble.Emulator.step, [0, 1, 2, 3]

    def failing(self, *args, **kwargs):
        if not left:
            raise RuntimeError("the device is on fire")
        left.pop()
        return original(self, *args, **kwargs)

    overrides = [*TINY, "method=gpipe", "max_steps=6", "progress=plain"]
    with monkeypatch.context() as patch:
        patch.setattr(assemble.Emulator, "step", failing)
        done, said = run_once(overrides, tmp_path)
    first = lines(done.run.path)
    assert first == said.splitlines()
    assert first[0].startswith("run folder: ") and first[-1].startswith("failed at step 4: RuntimeError")
    done, said = run_once(overrides, tmp_path)
    assert lines(done.run.path) == [*first, *said.splitlines()]


def test_evaluations_are_in_the_log_though_nothing_shows_them(tmp_path: Path) -> None:
    done, said = run_once([*TINY, "method=gpipe", "max_steps=2", "progress=none"], tmp_path)
    (line,) = [line for line in lines(done.run.path) if "test accuracy" in line]
    assert line not in said
    assert re.search(r"step 2/2  loss .+  test accuracy \S+ %  peak memory [\d.]+ [MG]B  left 0:00:00$", line)


def test_warnings_of_the_package_are_in_the_log(tmp_path: Path) -> None:
    with RunLog(tmp_path):
        logging.getLogger("pipemare_exp.some.module").warning("the store is gone")
    logging.getLogger("pipemare_exp.some.module").warning("too late")
    assert lines(tmp_path) == ["the store is gone"]


def test_a_log_that_cannot_be_written_costs_nothing(tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    with RunLog(tmp_path / "missing") as log:
        log.say("lost")
    (tmp_path / "train.log").symlink_to("/dev/full")
    with RunLog(tmp_path) as log:
        log.say("lost too")
    assert capfd.readouterr() == ("", "")


def test_quiet_says_nothing_and_a_failure_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["train", *TINY, "max_steps=2", "-q", "--runs", str(tmp_path)]
    assert cli.main(command) == 0
    assert capfd.readouterr() == ("", "")
    (run,) = tmp_path.iterdir()
    assert lines(run)[-1].startswith("digits t1+t2+t3 seed 0: finished")

    def failing(self, *args, **kwargs):
        raise RuntimeError("the device is on fire")

    monkeypatch.setattr(assemble.Emulator, "step", failing)
    assert cli.main([*command, "seed=1"]) == 1
    out, err = capfd.readouterr()
    assert out == "" and re.fullmatch(r"pipemare: failed at step 0; \S+/train.log tells more\n", err)


def test_the_peak_in_words() -> None:
    assert peak_resident() > 50e6  # torch
    assert re.fullmatch(r"\d+ MB|\d+\.\d GB", peak_in_words())
