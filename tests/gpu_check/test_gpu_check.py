"""The script for a GPU machine, on whatever device the tests have: it passes, it can fail, and it trains in pieces."""

import json
import time

import pytest
import torch

from pipemare_exp import cli
from pipemare_exp.errors import UserError
from pipemare_exp.experiment.config.identity import run_name
from pipemare_exp.experiment.config.load import from_mapping, load
from pipemare_exp.experiment.runs.folder import Run
from pipemare_exp.experiment.training import assemble
from pipemare_exp.experiment.training.session import train
from pipemare_exp.gpu_check import captured, cells, equality, speed
from pipemare_exp.gpu_check.cases import Case
from pipemare_exp.pipeline.emulator import cuda_graphs as graphs

CPU = torch.device("cpu")
SMALL = Case("resnet20", microbatches=4, size=2, width=1)
SETTINGS = ["model.width=2", "pipeline.stages=12", "max_steps=6", "checkpoint.every_steps=2", "log_every=1"]


def test_captured_steps_pass_and_a_stale_buffer_is_noticed(monkeypatch):
    found, difference = captured.compare(SMALL, "t1+t2", "fp32", 7, CPU)
    assert found == 2 and difference is None
    monkeypatch.setattr(graphs.CapturedMicrobatch, "forward", lambda self, tensors: self._passes.forward())
    found, difference = captured.compare(SMALL, "t1+t2", "fp32", 7, CPU)
    assert difference is not None and difference.startswith("the loss of step")


def test_equality_passes_and_a_wrong_version_is_noticed(monkeypatch):
    monkeypatch.setattr(equality, "STEPS", 3)
    monkeypatch.setattr(equality, "trained", short(equality.trained))
    said = []
    rows = equality.check(CPU, quick=True, say=said.append)
    assert all(row["passed"] for row in rows) and len(rows) == len(said) == 4
    assert rows[0]["difference"] == rows[1]["difference"] == 0.0
    assert rows[1]["mistake"] > 1e3 * equality.WEIGHTS  # gpipe's weights taken for t1+t2's
    assert rows[-1]["tolerance"] > rows[-1]["difference"] > 0.0  # fp32 against float64


def short(trained):
    return lambda case, method, device: trained(Case("resnet20", 4, 2, 1, torch.float64), method, device)


def test_bench_rows():
    said = []
    rows = speed.table(CPU, "resnet20", ["t1+t2"], [1], ["fp32"], 1, said.append)
    assert [(row["method"], row["how"]) for row in rows] == [
        ("plain PyTorch", "eager"), ("t1+t2", "eager"), ("t1+t2", "graphs"),
    ]  # fmt: skip
    assert rows[2]["ratio"] == rows[1]["seconds"] / rows[2]["seconds"] and len(said) == 3
    assert all(row["epoch_seconds"] == row["seconds"] * 50_000 / 8 for row in rows)


@pytest.fixture
def cell(tmp_path):
    (path,) = cells.prepare(tmp_path / "cells", "digits", ["t1_t2"], "demo", [3], SETTINGS)
    return path


def test_a_cell_is_the_run_that_its_overrides_name(cell):
    cfg, overrides = cells.read(cell)
    named = assemble.prepare(load([one for one in overrides if one != "device=cuda"] + ["device=cpu"])).cfg
    here = assemble.prepare(cells.here(cfg, None, "cpu")).cfg
    assert here == named and run_name(here) == run_name(named)
    assert {"task=digits", "method=t1_t2", "seed=3"} <= set(overrides)


def test_pieces_give_the_run_that_one_go_gives(cell, tmp_path, monkeypatch):
    """Cut by the clock after two steps, and again: the same rows, the same result, and nothing to do a third time."""
    cfg, overrides = cells.read(cell)
    whole = train(cells.here(cfg, None, "cpu"), overrides, runs=tmp_path / "whole")
    asked = []

    def clock():  # start, before the cell, then once a step and more
        asked.append(None)
        return 0.0 if len(asked) < 5 else 1e6

    monkeypatch.setattr(cells, "time", type("Clock", (), {"monotonic": staticmethod(clock)}))
    given = {"runs": str(tmp_path / "pieces"), "minutes": 1.0, "device": "cpu"}
    through, rows = cells.train([cell, cell], **given)
    assert not through and 0 < rows[0]["step"] < 6
    assert [row["outcome"] for row in rows] == ["interrupted", "not started in this piece"]
    monkeypatch.setattr(cells, "time", time)
    through, rows = cells.train([cell, cell], **given)
    assert through and rows[0]["resumed_from"] == [rows[0]["resumed_from"][0]] and rows[0]["resumed_from"][0] > 0
    assert [row["outcome"] for row in rows] == ["finished", "finished"]
    pieces = Run(rows[0]["run"])
    assert pieces.name == whole.run.name
    for one, other in zip(pieces.metrics(), whole.run.metrics(), strict=True):
        assert {**one, "seconds": 0} == {**other, "seconds": 0}


def test_command_prepares_and_writes_what_was_found(tmp_path, monkeypatch, capsys):
    assert cli.main(["gpu", "prepare", str(tmp_path), "--seeds", "2", "--method", "gpipe"]) == 0
    written = sorted(tmp_path.glob("*.json"))
    assert [path.name for path in written] == ["cifar10-gpipe-paper-s0.json", "cifar10-gpipe-paper-s1.json"]
    saved = from_mapping(json.loads(written[1].read_text())["config"])
    assert (saved.seed, saved.device, saved.model.name, saved.epochs) == (1, "cuda", "resnet50", 200)
    failing = [{"check": "a", "passed": True}, {"check": "b", "passed": False}]
    monkeypatch.setattr(equality, "check", lambda device, quick: failing)
    out = tmp_path / "found" / "equality.json"
    assert cli.main(["gpu", "equality", "--device", "cpu", "--out", str(out)]) == 1
    assert "1 of 2 checks passed; failed: b" in capsys.readouterr().out
    found = json.loads(out.read_text())
    assert found["equality"] == failing and found["versions"]["torch"] and found["machine"]["cores"]


@pytest.mark.parametrize(
    "words, text",
    [
        (["prepare", "{}", "--method", "gpip"], "gpipe"),
        (["prepare", "{}", "--seeds", "0"], "--seeds: 0: it must be"),
        (["train", "{}/none.json"], "prepare"),
        (["train", "{}", "--minutes", "0.1"], "--minutes"),
        (["bench", "--device", "cpu", "--method", "t1+t3"], "--method t1"),
        (["bench", "--device", "cpu", "--precision", "fp16"], "--precision fp16"),
    ],
)
def test_mistakes_are_told(words, text, tmp_path, capsys):
    assert cli.main(["gpu", *(word.format(tmp_path) for word in words)]) == 2
    assert text in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(capsys):
    assert cli.main(["gpu", "graphs"]) == 2
    assert "device=cuda" in capsys.readouterr().err


def test_no_cell(tmp_path):
    (tmp_path / "odd.json").write_text("[]")
    with pytest.raises(UserError, match="no cell"):
        cells.read(tmp_path / "odd.json")
