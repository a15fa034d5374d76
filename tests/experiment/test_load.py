"""A run's last and best model, evaluated again and loaded for a notebook."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import torch

from pipemare_exp.errors import UserError
from pipemare_exp.experiment.config.load import load
from pipemare_exp.experiment.evaluate import evaluate
from pipemare_exp.experiment.load import load_run
from pipemare_exp.experiment.training import assemble
from pipemare_exp.experiment.training.session import train
from pipemare_exp.tasks.image_classification import ImageClassification
from tests.experiment.tiny_training import TINY, assert_same_run, run_once

MORE = ["method=async", "data.batch_size=700", "epochs=5", "optimizer.rate=0.8"]


def best_row(rows: list[dict]) -> dict:
    return max(rows, key=lambda row: row["accuracy"])


def test_the_best_model_is_kept_and_changes_no_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = ImageClassification.evaluate

    def given(self, model):
        return {**original(self, model), "accuracy": next(scores)}

    monkeypatch.setattr(ImageClassification, "evaluate", given)
    scores = iter([10.0, 50.0, 40.0] * 2)
    plain, _ = run_once([*TINY, *MORE], tmp_path / "plain")
    kept, _ = run_once([*TINY, *MORE, "checkpoint.best=true"], tmp_path / "kept")
    assert_same_run(plain.run, kept.run)
    assert plain.run.name == kept.run.name
    rows = kept.run.metrics("eval")
    best = torch.load(kept.run.checkpoints / "best.pt", weights_only=True)
    assert best["step"] == rows[1]["step"] and kept.summary["best"] == 50.0
    with pytest.raises(UserError, match="train with checkpoint.best=true"):
        evaluate(plain.run, "best")


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_run_is_loaded_with_its_rows_and_its_models(tmp_path: Path, precision: str) -> None:
    overrides = [*TINY, *MORE, "checkpoint.best=true", f"precision={precision}"]
    cfg = load(overrides)
    done = train(cfg, overrides, runs=tmp_path, out=io.StringIO())
    rows = done.run.metrics("eval")
    for checkpoint, row in (("last", rows[-1]), ("best", best_row(rows))):
        scores = evaluate(done.run, checkpoint)
        assert (scores["step"], scores["accuracy"], scores["loss"]) == (row["step"], row["accuracy"], row["loss"])
        loaded = load_run(done.run.name, tmp_path, checkpoint)
        assert loaded.config.pipeline.stages == done.run.config["pipeline"]["stages"]
        assert (loaded.metrics, loaded.result) == (done.run.metrics(), done.summary)
        assert not loaded.model.training and next(loaded.model.parameters()).dtype == torch.float32
        if precision == "fp32":
            assert assemble.prepare(cfg).task.evaluate(loaded.model)["loss"] == row["loss"]


def test_the_rows_of_a_finished_run_are_those_that_it_ended_with(tmp_path: Path) -> None:
    done, _ = run_once([*TINY, "method=gpipe", "max_steps=2", "log_every=1"], tmp_path)
    for lines in (done.run.metrics_file.read_bytes()[:-20], b"", b"torn"):
        done.run.metrics_file.write_bytes(lines)
        with pytest.raises(UserError, match="metrics.jsonl has lost rows"):
            done.run.metrics()
        with pytest.raises(UserError, match="metrics.jsonl has lost rows"):
            load_run(done.run.path)


def test_a_checkpoint_older_than_the_end_of_its_run_is_told(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    done, _ = run_once([*TINY, "method=gpipe", "max_steps=5"], tmp_path)
    evaluate(done.run)
    assert capsys.readouterr().err == ""
    (done.run.checkpoints / "previous.pt").replace(done.run.checkpoints / "last.pt")
    assert evaluate(done.run)["step"] == 3
    assert "ended at step 5; its newest checkpoint is older, of step 3" in capsys.readouterr().err


def test_a_run_that_is_not_there_or_has_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is no run"):
        load_run("nothing", tmp_path)
    done, _ = run_once([*TINY, "method=gpipe", "max_steps=1"], tmp_path)
    with pytest.raises(UserError, match='allowed are last, best; did you mean "last"'):
        load_run(done.run.path, checkpoint="lst")
    with pytest.raises(UserError, match="checkpoint.best=true"):
        assert load_run(done.run.path, checkpoint="best").model
    (done.run.checkpoints / "last.pt").unlink()
    with pytest.raises(UserError, match="has no checkpoint"):
        assert load_run(done.run.path).model


def test_a_checkpoint_of_another_configuration_is_not_evaluated(tmp_path: Path) -> None:
    one, _ = run_once([*TINY, "method=gpipe", "max_steps=1"], tmp_path)
    other, _ = run_once([*TINY, "method=gpipe", "max_steps=1", "optimizer.rate=4"], tmp_path)
    (one.run.checkpoints / "last.pt").write_bytes((other.run.checkpoints / "last.pt").read_bytes())
    with pytest.raises(UserError, match="another configuration"):
        evaluate(one.run)
