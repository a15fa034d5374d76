"""Runs on different data that stand side by side: said under comparisons, tables, figures; kept in committed rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paper_figures.runs import table3
from pipemare_exp import cli
from pipemare_exp.analysis import comparison, data_of_runs, rows
from pipemare_exp.experiment.runs.folder import Run
from pipemare_exp.report.doubts import doubts
from tests.experiment.run_folders import write_run

ONE, OTHER = "a" * 64, "b" * 64


def with_data(run: Run, sha256: str | None, **other: str | None) -> Run:
    """`run` with the data x (of this digest) and y recorded; `other`: what a second session took in their place."""
    meta = run.meta
    if sha256 is not None:
        meta["data"] = {"x": {"bytes": 1, "sha256": sha256}, "y": {"bytes": 2, "sha256": ONE}}
    if other:
        taken = {name: text and {"bytes": 1, "sha256": text} for name, text in other.items()}
        meta["sessions"] = [{"resumed_from": None}, {"resumed_from": 1, "other_data": taken}]
    (run.path / "meta.json").write_text(json.dumps(meta))
    return run


def test_a_row_has_the_digests_and_what_a_later_session_took(tmp_path: Path) -> None:
    with_data(write_run(tmp_path, "gpipe", 0), ONE, y=OTHER, z=ONE, x=None)
    (row,) = rows.read(tmp_path)
    assert row.data == {
        "x": "aaaaaaaaaaaaaaaa, then none",
        "y": "aaaaaaaaaaaaaaaa, then bbbbbbbbbbbbbbbb",
        "z": "none, then aaaaaaaaaaaaaaaa",
    }


@pytest.mark.parametrize(
    ("digests", "names"),
    [
        ([ONE, ONE, ONE], []),
        ([ONE, ONE, OTHER], ["x"]),
        ([ONE, None, ONE], []),  # of one that recorded none nothing is said
        ([None, None, None], []),
    ],
)
def test_what_differs(digests: list[str | None], names: list[str], tmp_path: Path) -> None:
    for seed, digest in enumerate(digests):
        with_data(write_run(tmp_path, "gpipe", seed), digest)
    assert data_of_runs.differing(rows.read(tmp_path)) == names
    (row,) = comparison.compare(rows.read(tmp_path), "digits")
    assert row.get("data_differ", []) == names


def test_comparisons_tables_figures_and_doubts_say_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed in range(2):
        with_data(write_run(tmp_path / "runs", "gpipe", seed), ONE)
        with_data(write_run(tmp_path / "runs", "async", seed, (70.0, 80.0)), OTHER)
    found = rows.read(tmp_path / "runs")
    compared = comparison.compare(found, "digits")
    assert [row.get("data_differ") for row in compared] == [
        None,
        ["x"],
    ]  # gpipe's runs agree, async's reference does not
    assert cli.main(["compare", "digits", "--runs", str(tmp_path / "runs")]) == 0
    told = capsys.readouterr().out
    assert "async: the runs compared here were trained on different data (x)." in told
    markdown = table3.draw(found, "digits", tmp_path / "table")[0].read_text()
    assert "- These runs were trained on different data: x." in markdown
    (doubt,) = [one for one in doubts(found, compared) if one.title == "Runs compared on different data"]
    assert doubt.cases == ["digits, scale demo: async: x"]


def test_nothing_is_said_where_data_agree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for method in ("gpipe", "async"):
        with_data(write_run(tmp_path, method, 0), ONE)
    assert cli.main(["compare", "digits", "--runs", str(tmp_path)]) == 0
    assert "different data" not in capsys.readouterr().out
    assert data_of_runs.note(rows.read(tmp_path)) == []


def test_committed_rows_keep_it_and_older_ones_keep_their_bytes(tmp_path: Path) -> None:
    write_run(tmp_path / "old", "gpipe", 0)
    rows.write(rows.read(tmp_path / "old"), tmp_path / "kept")
    before = (tmp_path / "kept" / rows.RUNS_FILE).read_bytes()
    assert b",data" not in before.splitlines()[0]
    rows.write(rows.read(tmp_path / "kept"), tmp_path / "again")
    assert (tmp_path / "again" / rows.RUNS_FILE).read_bytes() == before

    with_data(write_run(tmp_path / "old", "gpipe", 1), ONE)
    both = rows.read(tmp_path / "old")
    rows.write(both, tmp_path / "new")
    assert rows.read(tmp_path / "new") == both
    assert [row.data for row in both] == [{}, {"x": "a" * 16, "y": "a" * 16}]
