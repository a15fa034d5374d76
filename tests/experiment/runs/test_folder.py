"""The folder of a run: rows, outcomes, the lock, and folders that cannot be written."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from pipemare_exp.errors import UserError
from pipemare_exp.experiment.runs.folder import Run, find_runs, open_run, runs_root, write_json, write_text


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
    run.cut_metrics(2, evaluated=0)
    run.append([train_row(3)])
    assert [row["step"] for row in run.metrics()] == [1, 2, 3]


def test_a_broken_line_in_the_middle_is_told(run: Run) -> None:
    write_text(run.path / "metrics.jsonl", '{"kind"\n{"kind": "train", "step": 1}\n')
    with pytest.raises(UserError, match="line 1"):
        run.metrics()


def test_cutting_drops_what_a_resumed_run_will_write_again(run: Run) -> None:
    rows = [train_row(5), {"kind": "eval", "step": 5}, train_row(10), {"kind": "eval", "step": 10}]
    run.append([*rows, train_row(11), {"kind": "outcome", "outcome": "diverged", "step": 11}])
    run.cut_metrics(10, evaluated=5)  # stopped between the epoch's last step and its evaluation
    assert run.metrics() == rows[:3]
    run.cut_metrics(0, evaluated=0)
    assert run.metrics() == []


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
    write_json(run.path / "result.json", {"outcome": "diverged"})
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


def test_a_damaged_result_is_told(run: Run) -> None:
    write_text(run.path / "result.json", "{")
    with pytest.raises(UserError, match="result.json is not JSON"):
        assert run.result
