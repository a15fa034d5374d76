"""Health and staleness from runs to figures: what is drawn, the files of committed rows, and runs that lack them."""

from __future__ import annotations

from pathlib import Path

import pytest

from paper_figures import registry
from pipemare_exp import cli
from pipemare_exp.analysis import rows
from tests.paper_figures.conftest import read_csv

COMMON = [
    *("task=digits", "scale=demo", "epochs=3", "data.batch_size=350", "pipeline.stages=3", "pipeline.microbatches=2"),
    *("model.width=2", "tracking=none", "threads=1", "progress=none", "device=cpu"),
]
FIGURES = ("health_digits", "staleness_digits", "t2_error_digits")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("diagnosed") / "runs"
    for method in ("gpipe", "pipedream", "pipemare", "async"):
        more = [] if method == "pipedream" else ["diagnostics.at_evaluations=true"]
        assert cli.main(["train", *COMMON, f"method={method}", f"runs={root}", *more]) == 0
    return root


def test_the_figures_from_runs_and_from_committed_rows_are_the_same(runs: Path, tmp_path: Path) -> None:
    direct, committed = rows.read(runs), tmp_path / "rows"
    written = rows.write(direct, committed)
    assert [path.name for path in written] == ["runs.csv", "metrics.csv", "health.csv", "staleness.csv"]
    again = rows.read(committed)
    assert [(row.health, row.staleness) for row in again] == [(row.health, row.staleness) for row in direct]
    for name in FIGURES:
        (entry,) = registry.find([name])
        assert entry.scales(direct) == ["demo"], name
        drawn = [entry.make(tmp_path / place, found, "demo") for place, found in (("a", direct), ("b", again))]
        assert [path.suffix for path in drawn[0]] == [".svg", ".png", ".csv"]
        for one, other in zip(*drawn, strict=True):
            assert one.read_bytes() == other.read_bytes(), one.name


def test_what_is_drawn_is_what_was_logged(runs: Path, tmp_path: Path) -> None:
    found = rows.read(runs)
    (whole,) = (row for row in found if row.method == "t1+t2+t3")
    registry.find(["t2_error_digits"])[0].make(tmp_path, found, "demo")
    drawn = read_csv(tmp_path / "t2_error_digits_demo.csv")
    assert {line["method"] for line in drawn} == {"t1+t2+t3"}
    for look in whole.staleness:
        lines = [line for line in drawn if int(line["step"]) == look["step"]]
        values = [float(line["t2_error"]) if line["t2_error"] else None for line in lines]
        assert values == [pytest.approx(value) if value is not None else None for value in look["t2_error"]]
    assert [row["step"] for row in whole.health] == [one["step"] for one in whole.evals]


def test_rows_without_diagnostics_are_written_as_ever(runs: Path, tmp_path: Path) -> None:
    from dataclasses import replace

    plain = [replace(row, health=[], staleness=[]) for row in rows.read(runs)]
    rows.write(rows.read(runs), tmp_path)
    assert [path.name for path in rows.write(plain, tmp_path)] == ["runs.csv", "metrics.csv"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["metrics.csv", "runs.csv"]
    assert [(row.health, row.staleness) for row in rows.read(tmp_path)] == [([], [])] * len(plain)


def test_runs_that_lack_them_are_told_with_the_command(runs: Path) -> None:
    plain = [row for row in rows.read(runs) if row.method == "pipedream"]
    (entry,) = registry.find(["staleness_digits"])
    _, lacks = entry.chosen(plain, "demo")
    assert "diagnostics.at_evaluations=true" in lacks[0]
    assert entry.sweep(None) == "pipemare sweep staleness_digits scale=demo"
