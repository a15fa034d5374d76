"""A language model's run from start to sample: killed in mid-epoch it goes on bit for bit; its text is in its name."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from pipemare_exp import cli, data
from pipemare_exp.data.running_text import Source
from pipemare_exp.errors import UserError
from pipemare_exp.experiment.config.load import load
from pipemare_exp.experiment.config.resolve import label
from pipemare_exp.experiment.runs.folder import find_runs
from pipemare_exp.experiment.training import assemble
from pipemare_exp.experiment.training.session import train
from tests.experiment.tiny_training import assert_same_run
from tests.experiment.training.test_resume import Killed, kill_at

SMALL = [
    "task=docstrings", "model.layers=1", "model.width=8", "model.heads=2", "model.dropout=0.2",
    "model.attention_dropout=0.1", "data.block=8", "data.blocks_per_epoch=60", "data.batch_size=6",
    "pipeline.microbatches=4", "epochs=2", "evaluation.blocks=5", "log_every=3", "checkpoint.every_steps=4",
    "threads=1", "tracking=none", "progress=none", "device=cpu", "method.lr_rescheduling.steps=8",
]  # fmt: skip


def put_text(monkeypatch: pytest.MonkeyPatch, root: Path, text: str) -> list[str]:
    """In place of the installed packages' docstrings; the setting of the data folder."""
    parts = [("train", text * 20), ("valid", text * 2), ("test", text)]
    described = dataclasses.replace(
        data.DATASETS["docstrings"], source=lambda root: Source(lambda: iter(parts), {"t": text})
    )
    monkeypatch.setitem(data.DATASETS, "docstrings", described)
    return [f"data.root={root}"]


TEXT = "def array(shape, dtype):\nReturns an array of this shape.\n\n\n"


@pytest.mark.parametrize("method", ["gpipe", "t1_t2", "pipemare"])
@pytest.mark.parametrize("more", [[], ["data.bpe_merges=20", "model.tying=decoder"]], ids=["bytes", "subwords-tied"])
def test_killed_in_mid_epoch_it_goes_on_bit_for_bit(method, more, tmp_path, monkeypatch):
    overrides = [*SMALL, f"method={method}", *more, *put_text(monkeypatch, tmp_path, TEXT)]
    whole = train(load(overrides), overrides, runs=tmp_path / "whole")
    assert whole.outcome == "finished" and whole.summary["step"] == 20
    with monkeypatch.context() as patch, pytest.raises(Killed):
        kill_at(15, patch)
        train(load(overrides), overrides, runs=tmp_path / "killed")
    resumed = train(load(overrides), overrides, runs=tmp_path / "killed")
    assert resumed.summary["resumed_from"] == [12]
    assert_same_run(resumed.run, whole.run)


@pytest.fixture
def run(tmp_path, monkeypatch):
    overrides = [*SMALL, "method=pipemare", *put_text(monkeypatch, tmp_path, TEXT)]
    return train(load(overrides), overrides, runs=tmp_path / "runs").run


def test_what_a_run_says(run):
    result, rows = run.result, run.metrics("eval")
    assert result["metric"] == "bits_per_byte" and set(result["test"]) == {"loss", "bits_per_byte", "perplexity"}
    assert result["best"] == min(row["bits_per_byte"] for row in rows) and result["last"] == rows[-1]["bits_per_byte"]
    assert rows[-1]["split"] == "valid" and rows[-1]["perplexity"] > 1
    notes = json.loads((run.path / "meta.json").read_text())["notes"]
    assert notes["text"] == run.config["data"]["text"] and notes["tokens"] == "bytes"
    assert notes["epoch"] == "60 of 147 blocks of 8 tokens" and notes["valid"] == "5 of 14 blocks"


def test_another_text_is_another_run(run, tmp_path, monkeypatch):
    overrides = [*SMALL, "method=pipemare", *put_text(monkeypatch, tmp_path, TEXT.upper())]
    other = assemble.prepare(load(overrides)).cfg
    assert other.data.text not in (None, run.config["data"]["text"])
    assert train(load(overrides), overrides, runs=run.path.parent).run.name != run.name
    with pytest.raises(UserError, match="data.text=.*, but the text here is"):
        assemble.prepare(load([*overrides, f"data.text={run.config['data']['text']}"]))
    assert len(find_runs(run.path.parent)) == 2


def test_generate(run, capsys):
    assert cli.main(["generate", str(run.path), "def ", "--tokens", "30", "--samples", "2"]) == 0
    first = capsys.readouterr().out
    assert first.startswith("--- seed 0\ndef ") and "--- seed 1\ndef " in first
    assert cli.main(["generate", str(run.path), "def ", "--tokens", "30", "--seed", "1"]) == 0
    assert first.endswith(capsys.readouterr().out)
    for wrong, words in (
        (["--tokens", "0"], "--tokens: 0: it must be a whole number from 1"),
        (["--temperature", "-1"], "--temperature: -1: it must be"),
        (["--temperature", "nan"], "--temperature: nan: it must be"),
        (["--top-k", "0"], "--top-k: 0: it must be a whole number"),
    ):
        assert cli.main(["generate", str(run.path), "x", *wrong]) == 2
        assert words in capsys.readouterr().err
    assert cli.main(["generate", str(run.path), ""]) == 2 and "prompt is empty" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["model=resnet20"], "language modelling trains gpt_tiny or gpt_small or gpt2"),
        (["data.block=null"], "data.block is not set"),
        (["data.block=200"], "data.block=200, but model.name=gpt_tiny has 128 positions"),
        (["data.block=100000"], "but train of docstrings has 11800 tokens"),
        (["precision=bf16"], "precision=bf16 with task=docstrings"),
        (["model.tying=all"], "has no encoder"),
    ],
)
def test_what_is_refused(more, words, tmp_path, monkeypatch):
    overrides = [*SMALL, "method=gpipe", f"data.root={tmp_path}", "data.blocks_per_epoch=null", *more]
    put_text(monkeypatch, tmp_path, TEXT * 10)
    with pytest.raises(UserError, match=words):
        assemble.prepare(load(overrides))


def test_every_method_composes_with_the_task():
    for method in ("gpipe", "pipedream", "async", "t1", "t2", "t1_t2", "pipemare", "hogwild", "hogwild_t1"):
        assert label(load(["task=docstrings", f"method={method}"]).method)
