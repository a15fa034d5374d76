"""A run knows its data: other data are refused by every command that reads them, unless allowed, which is recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipemare_exp.cli import main
from pipemare_exp.data import digits
from pipemare_exp.data.digests import Input
from pipemare_exp.errors import UserError
from pipemare_exp.experiment.evaluate import evaluate
from pipemare_exp.experiment.load import load_run
from pipemare_exp.experiment.runs.folder import Run, find_runs
from pipemare_exp.experiment.runs.same_data import differences, named
from tests.experiment.tiny_training import TINY, run_once

OVERRIDES = [*TINY, "method=t1_t2", "checkpoint.best=true"]


def other_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    """One pixel of one training image is another one, as when a package or a file was exchanged."""
    original = digits._table

    def table() -> Any:
        changed = original().copy()
        changed[0, 0] += 1
        return changed

    monkeypatch.setattr(digits, "_table", table)


def test_meta_holds_size_and_digest_of_the_data(tmp_path: Path) -> None:
    result, _ = run_once([*OVERRIDES, "max_steps=1"], tmp_path)
    data = result.run.meta["data"]
    assert list(data) == ["x_train", "y_train", "x_test", "y_test"]
    assert all(set(one) == {"bytes", "sha256"} and len(one["sha256"]) == 64 for one in data.values())
    assert "other_data" not in result.run.meta["sessions"][0]


def test_a_resume_on_other_data_is_refused_and_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped, _ = run_once([*OVERRIDES, "max_steps=4"], tmp_path)
    (stopped.run.path / "result.json").unlink()
    before = {path: path.read_bytes() for path in stopped.run.path.rglob("*") if path.is_file()}
    monkeypatch.undo()
    other_digits(monkeypatch)
    with pytest.raises(UserError) as refused:
        run_once([*OVERRIDES, "max_steps=4"], tmp_path)
    text = str(refused.value)
    was = stopped.run.meta["data"]
    name = next(one for one in ("x_train", "x_test") if one in text)
    assert was[name]["sha256"][:12] in text and f"{was[name]['bytes']:,} bytes" in text
    assert "trained on other data" in text and "data.changed=allow" in text and "data.root=DIR" in text
    assert {path: path.read_bytes() for path in stopped.run.path.rglob("*") if path.is_file()} == before

    resumed, said = run_once([*OVERRIDES, "max_steps=4", "data.changed=allow"], tmp_path)
    assert resumed.run.path == stopped.run.path  # no part of the identity
    assert f"note: other data than the run was trained on: {name}" in said and "resumed from step 4" in said
    meta = resumed.run.meta
    assert meta["data"] == was  # what it was trained on first
    assert "other_data" not in meta["sessions"][0]
    assert meta["sessions"][1]["other_data"][name]["sha256"] != was[name]["sha256"]


def test_a_finished_run_is_not_given_out_as_one_of_other_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_once([*OVERRIDES, "max_steps=2"], tmp_path)
    other_digits(monkeypatch)
    with pytest.raises(UserError, match="trained on other data"):
        run_once([*OVERRIDES, "max_steps=2"], tmp_path)
    _, said = run_once([*OVERRIDES, "max_steps=2", "data.changed=allow"], tmp_path)
    assert "nothing to do" in said and "note: other data" in said


@pytest.fixture
def finished(tmp_path: Path) -> Run:
    """A run of the plain model, as `pipemare train` makes it."""
    code = main(["train", *OVERRIDES, "max_steps=2", "threads=1", "--runs", str(tmp_path), "--quiet"])
    assert code == 0
    (run,) = find_runs(tmp_path)
    return run


def test_what_reads_a_run_refuses_other_data_and_says_that_it_took_them(
    finished: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    same = evaluate(finished)
    assert same["other_data"] == []
    other_digits(monkeypatch)
    capsys.readouterr()
    assert main(["eval", str(finished.path)]) == 2
    refused = capsys.readouterr()
    assert "was trained on other data" in refused.err and "--other-data" in refused.err and refused.out == ""
    assert main(["eval", str(finished.path), "--best"]) == 2
    assert main(["translate", str(finished.path)]) == 2
    with pytest.raises(UserError, match="was trained on other data.*other_data=True"):
        load_run(finished.path).model  # noqa: B018
    assert load_run(finished.path).metrics  # needs no data

    capsys.readouterr()
    assert main(["eval", str(finished.path), "--other-data", "--json"]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["other_data"] in (["x_train"], ["x_test"])
    assert "note: other data than the run was trained on" in told.err
    assert not load_run(finished.path, other_data=True).model.training


def test_a_run_that_recorded_no_data_is_taken_as_it_is(finished: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    meta = finished.meta
    del meta["data"]
    (finished.path / "meta.json").write_text(json.dumps(meta))
    other_digits(monkeypatch)
    assert evaluate(finished)["other_data"] == []


@pytest.mark.parametrize("data", [[1], {"x_train": "abc"}, 3])
def test_a_record_that_is_none_counts_as_damaged(data: Any, finished: Run) -> None:
    (finished.path / "meta.json").write_text(json.dumps({**finished.meta, "data": data}))
    with pytest.raises(UserError, match="data are no object of objects"):
        _ = finished.meta


def test_differences_name_what_changed_went_and_came() -> None:
    recorded = {name: {"bytes": 1, "sha256": name * 64} for name in "abc"}
    now = {"a": Input(1, "a" * 64, Path("/x/a")), "b": Input(1, "0" * 64), "d": Input(2, "d" * 64)}
    assert differences(recorded, now) == {
        "b": {"bytes": 1, "sha256": "0" * 64},
        "c": None,
        "d": {"bytes": 2, "sha256": "d" * 64},
    }
    assert differences({}, now) == {}
    assert named(list("abc")) == "a, b, c" and named(list("abcde")) == "a, b and 3 more"
