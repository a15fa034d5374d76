"""Which finished runs have collapsed, at the threshold's two sides; and where nothing can be said."""

import dataclasses
import math

import pytest

from pipemare_exp.analysis import collapse, comparison, rows
from pipemare_exp.analysis.collapse import collapsed
from pipemare_exp.analysis.row import RunRow
from tests.experiment.run_folders import write_run

EDGE = 2 * math.log(10)  # digits have ten classes


def run(loss, outcome="finished", **more):
    health = [] if loss is None else [{"step": 1, "loss": 9e9}, {"step": 2, "loss": loss}]
    return RunRow(name="a", outcome=outcome, metric="accuracy", health=health, **{"task": "digits", **more})


@pytest.mark.parametrize(("loss", "expected"), [(0.1, False), (EDGE, False), (EDGE + 1e-9, True), (1369.0, True)])
def test_the_last_training_loss_decides(loss, expected):
    assert collapsed(run(loss)) is expected


def test_where_nothing_can_be_said():
    assert collapsed(run(None)) is None
    assert collapsed(run(1369.0, outcome="diverged")) is None
    assert collapsed(run(1369.0, task="numerals")) is None


def test_tokens_count_as_merges():
    row = run(1.0, task="multi30k", settings={"data.bpe_merges": "2000"})
    assert collapse.uniform_loss(row) == math.log(2000)


def test_compare_counts_them_beside_the_diverged_and_averages_them(tmp_path):
    write_run(tmp_path, "gpipe", 0, (90.0, 95.0))
    write_run(tmp_path, "async", 0, (90.0, 95.0))
    write_run(tmp_path, "async", 1, (20.0, 10.0))
    write_run(tmp_path, "async", 2, (20.0,), outcome="diverged")
    found = rows.read(tmp_path)
    found = [
        dataclasses.replace(row, health=[{**row.health[-1], "loss": 140.0}]) if row.last == 10.0 else row
        for row in found
    ]
    gpipe, none = comparison.compare(found, "digits")
    assert (gpipe["collapsed"], none["collapsed"], none["n"], none["last_mean"]) == (0, 1, 3, 52.5)
    assert none["verdict"].endswith("diverged 1 of 3; collapsed 1 of 3")
    rows.write(found, tmp_path / "rows")
    assert comparison.compare(rows.read(tmp_path / "rows"), "digits") == [gpipe, none]
