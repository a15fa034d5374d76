"""Run folders that a crash or a hand left behind: a damaged row everywhere, never a traceback."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipemare_exp import cli
from pipemare_exp.analysis import rows
from pipemare_exp.analysis.comparison import compare
from tests.experiment.run_folders import write_run

DAMAGE = {
    "torn-result": ("result.json", b'{"outcome": "fini'),
    "no-result": ("result.json", None),
    "odd-result": ("result.json", b"[1, 2]"),
    "no-outcome": ("result.json", b"{}"),
    "odd-metric": (
        "result.json",
        b'{"outcome": "finished", "step": 20, "metric": "furlongs", "best": 1.0, "last": 1.0, "seconds": 1.0}',
    ),
    "torn-config": ("config.yaml", b"task: {name: [digits"),
    "empty-config": ("config.yaml", b""),
    "odd-config": ("config.yaml", b"- 1"),
    "foreign-config": ("config.yaml", b"task: 3\nmethod: 4\nscale: 5\nseed: 6\n"),
    "odd-meta": ("meta.json", b"[1]"),
    "odd-machine": ("meta.json", b'{"machine": [1]}'),
    "latin-1-meta": ("meta.json", b'{"command": "\xfc"}'),
    "odd-overrides": ("overrides.json", b'{"a": 1}'),
    "latin-1-metrics": ("metrics.jsonl", b"\xff\xfe\n"),
    "odd-metrics": ("metrics.jsonl", b"[1]\n"),
    "short-metrics": ("metrics.jsonl", b'{"kind": "eval"}\n'),
}
STATUSES = {"odd-status": b"[1]", "latin-1-status": b"\xff", "foreign-status": b'{"state": "flying"}'}


@pytest.fixture
def runs(tmp_path) -> Path:
    """Two runs that are whole, and beside them a folder of each kind."""
    write_run(tmp_path / "runs", "gpipe", 0)
    write_run(tmp_path / "runs", "t1", 0)
    for seed, (name, (file, content)) in enumerate(DAMAGE.items(), start=10):
        path = write_run(tmp_path / "runs", "gpipe", seed, name=name).path / file
        path.unlink() if content is None else path.write_bytes(content)
    return tmp_path / "runs"


def test_a_damaged_folder_is_a_row_that_says_why(runs):
    found = {row.name: row for row in rows.read(runs)}
    assert {name for name, row in found.items() if row.outcome == "damaged"} == set(DAMAGE)
    assert all(row.problem for row in found.values() if row.outcome == "damaged")
    assert "result.json is missing" in found["no-result"].problem
    assert 'metric "furlongs" is unknown' in found["odd-metric"].problem
    assert [row["n"] for row in compare(found.values(), "digits")] == [1, 1]


@pytest.mark.parametrize("name", STATUSES)
def test_a_run_whose_status_cannot_be_read_was_interrupted(tmp_path, name):
    """The next session writes that file anew."""
    path = write_run(tmp_path, "gpipe", outcome="interrupted", name=name).path
    (path / "status.json").write_bytes(STATUSES[name])
    (row,) = rows.read(tmp_path)
    assert (row.outcome, row.best, row.step) == ("interrupted", 95.0, None)


def test_runs_lists_them_and_says_of_them_only_what_is_known(runs, capsys):
    assert cli.main(["runs", "--runs", str(runs), "--json"]) == 0
    listed = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert {name for name, row in listed.items() if row["outcome"] == "damaged"} == set(DAMAGE)
    one = listed["torn-result"]
    assert {key for key, value in one.items() if value is not None} == {"name", "outcome", "problem"}
    assert cli.main(["runs", "--runs", str(runs)]) == 0
    assert "torn-result" in capsys.readouterr().out


def test_compare_and_figures_leave_them_out_and_say_so(runs, tmp_path, capsys):
    assert cli.main(["compare", "digits", "--runs", str(runs)]) == 0
    assert "left out, damaged: odd-result: " in capsys.readouterr().out
    assert cli.main(["figures", "--runs", str(runs), "--rows", str(tmp_path / "rows")]) == 0
    said = capsys.readouterr().err
    assert all(f"left out, damaged: {name}: " in said for name in DAMAGE)
    assert len(rows.read(tmp_path / "rows")) == 2


def test_the_report_names_them_among_its_doubts(runs, tmp_path, capsys):
    page = tmp_path / "page.html"
    assert cli.main(["report", "table2_digits", "--runs", str(runs), "--out", str(page)]) == 0
    assert f"2 finished, {len(DAMAGE)} damaged" in capsys.readouterr().out
    assert "short-metrics: " in page.read_text()


@pytest.mark.parametrize("name", ["torn-config", "odd-config"])
def test_eval_says_in_a_line_what_is_wrong(runs, name, capsys):
    assert cli.main(["eval", name, "--runs", str(runs)]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert f"{name}/config.yaml" in line
