"""The folder of a run: rows, outcomes, the lock, and folders that cannot be written."""

from __future__ import annotations

import errno
import json
import math
import os
import subprocess
from pathlib import Path

import pytest

from pipemare_exp.errors import UserError
from pipemare_exp.experiment.runs import lock, rows
from pipemare_exp.experiment.runs.folder import Run, find_runs, open_run, runs_root
from pipemare_exp.experiment.runs.reading import Damaged
from pipemare_exp.experiment.runs.writing import remove_left_over, write_json, write_text


@pytest.fixture
def run(tmp_path: Path) -> Run:
    run = Run(tmp_path / "runs" / "digits-gpipe-demo-s0-00000000")
    run.create()
    write_text(run.path / "config.yaml", "seed: 0\n")
    return run


def train_row(step: int) -> dict:
    return {"kind": "train", "step": step, "loss": 1.0 / step}


def test_rows_come_back_by_kind_and_not_finite_numbers_are_null(run: Run) -> None:
    run.append([train_row(1), {"kind": "eval", "step": 1, "loss": math.nan, "accuracy": math.inf}])
    assert run.metrics("train") == [train_row(1)]
    assert run.metrics("eval") == [{"kind": "eval", "step": 1, "loss": None, "accuracy": None}]
    assert len(run.metrics()) == 2


def test_a_torn_last_line_is_left_out_and_cut_away(run: Run) -> None:
    run.append([train_row(1), train_row(2)])
    with open(run.path / "metrics.jsonl", "a") as file:
        file.write('{"kind": "train", "st')
    assert [row["step"] for row in run.metrics()] == [1, 2]
    rows.keep(run.metrics_file, 2)
    run.append([train_row(3)])
    assert [row["step"] for row in run.metrics()] == [1, 2, 3]


def test_a_broken_line_in_the_middle_is_told(run: Run) -> None:
    write_text(run.path / "metrics.jsonl", '{"kind"\n{"kind": "train", "step": 1}\n')
    with pytest.raises(UserError, match="line 1"):
        run.metrics()


def test_a_checkpoint_knows_whether_the_rows_before_it_are_there(run: Run) -> None:
    run.append([train_row(1), train_row(2)])
    marked = rows.mark(run.metrics_file)
    run.append([train_row(3)])
    assert rows.lost(run.metrics_file, marked) is None
    rows.keep(run.metrics_file, marked["rows"])
    assert run.metrics() == [train_row(1), train_row(2)]
    rows.keep(run.metrics_file, 1)
    assert "2 were written, 1 are there" in (rows.lost(run.metrics_file, marked) or "")
    run.append([train_row(7)])
    assert "were changed" in (rows.lost(run.metrics_file, marked) or "")
    run.metrics_file.unlink()
    assert "0 are there" in (rows.lost(run.metrics_file, marked) or "")


def test_the_lock_keeps_a_second_trainer_out_and_is_gone_with_the_first(run: Run) -> None:
    assert not run.is_locked()
    with run.lock():
        run.set_status("running", 3)
        assert run.is_locked()
        assert run.outcome == "running"
        with pytest.raises(UserError, match="another process"), run.lock():
            pass
    assert not run.is_locked()
    with run.lock():
        pass


def test_outcomes(run: Run) -> None:
    assert run.outcome == "interrupted"  # made, never started
    run.set_status("running", 3)
    assert run.outcome == "interrupted"  # nobody holds the lock: its process is gone
    run.set_status("failed", 3, error="ValueError: no")
    assert (run.outcome, run.status["error"], run.result) == ("failed", "ValueError: no", None)
    done = {"outcome": "diverged", "step": 3, "metric": "accuracy", "best": None, "last": None, "seconds": 1.0}
    write_json(run.path / "result.json", done)
    assert run.outcome == "diverged"


def test_a_folder_that_cannot_be_made_is_a_user_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write the run folder.*--runs"):
        Run(tmp_path / "file" / "run").create()


def test_replacing_leaves_no_other_file_and_a_failure_leaves_the_old_one(run: Run) -> None:
    write_json(run.path / "status.json", {"a": 1})
    before = sorted(path.name for path in run.path.iterdir())
    write_json(run.path / "status.json", {"a": 2})
    assert sorted(path.name for path in run.path.iterdir()) == before
    with pytest.raises(TypeError):
        write_json(run.path / "status.json", {"a": object()})
    assert json.loads((run.path / "status.json").read_text()) == {"a": 2}


def test_runs_are_found_by_folder_and_by_name(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = run.path.parent
    (root / "not-a-run").mkdir()
    assert [found.name for found in find_runs(root)] == [run.name]
    assert find_runs(tmp_path / "nothing") == []
    assert open_run(run.path).path == run.path
    assert open_run(run.name, root).path == root / run.name
    monkeypatch.setenv("PIPEMARE_RUNS", str(root))
    assert runs_root() == root
    assert runs_root(tmp_path) == tmp_path
    assert open_run(run.name).path == root / run.name
    with pytest.raises(UserError, match="is no run"):
        open_run("nothing")


BAD = {
    "empty": b"",
    "zeros": b"\0" * 40,
    "torn": b'{"outcome": "fini',
    "not UTF-8": b"\xff\xfe{}",
    "another kind": b"[1]",
    "a number": b"3",
    "too deep": b"[" * 100_000,
}


@pytest.mark.parametrize("damage", BAD)
@pytest.mark.parametrize("name", ["config.yaml", "meta.json", "result.json", "overrides.json"])
def test_a_damaged_file_is_told_with_its_reason(run: Run, name: str, damage: str) -> None:
    content = b'{"a": 1}' if (name, damage) == ("overrides.json", "another kind") else BAD[damage]
    (run.path / name).write_bytes(content)
    with pytest.raises(Damaged, match=f"{name} is damaged: .+; move it away"):
        getattr(run, name.split(".")[0])


@pytest.mark.parametrize("damage", BAD)
def test_a_damaged_status_is_that_of_an_interrupted_run(run: Run, damage: str) -> None:
    (run.path / "status.json").write_bytes(BAD[damage])
    assert (run.status, run.outcome) == ({}, "interrupted")


def test_a_folder_in_the_place_of_a_file_is_told(run: Run) -> None:
    (run.path / "meta.json").mkdir()
    (run.path / "metrics.jsonl").mkdir()
    with pytest.raises(Damaged, match="directory"):
        assert run.meta
    with pytest.raises(Damaged, match="directory"):
        run.metrics()


@pytest.mark.parametrize("line", [b"[1, 2]", b'{"kind": "train"}', b"\xff", b'{"kind": 1, "step": 1}'])
def test_a_line_that_is_no_row_is_told(run: Run, line: bytes) -> None:
    run.append([train_row(1)])
    with open(run.metrics_file, "ab") as file:
        file.write(line + b"\n")
    with pytest.raises(Damaged, match="line 2"):
        run.metrics()


def test_a_failed_write_leaves_no_part_of_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    before = sorted(path.name for path in run.path.iterdir())
    with pytest.raises(OSError, match="No space"):
        write_text(run.path / "meta.json", "much")
    assert sorted(path.name for path in run.path.iterdir()) == before


def test_what_killed_writers_left_is_removed_and_a_living_one_s_is_not(run: Run) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    left = [run.path / f".error.txt.{dead.pid}.tmp", run.checkpoints / f".last.pt.{dead.pid}.tmp"]
    living = run.path / f".status.json.{os.getpid()}.tmp"
    other = run.path / ".notes.tmp"
    for path in (*left, living, other):
        path.write_text("half")
    remove_left_over(run.path)
    assert not any(path.exists() for path in left) and living.exists() and other.exists()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS])
def test_without_locks_a_run_is_trained_and_a_warning_says_what_is_missing(
    run: Run, number: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def flock(file: object, how: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(lock.fcntl, "flock", flock)
    with run.lock():
        assert not run.is_locked()
    (record,) = caplog.records
    assert str(run.path) in record.message and "has no locks" in record.message
