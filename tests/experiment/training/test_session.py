"""Runs from start to outcome: found finished, diverged, failed, locked, evaluated when asked."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path

import pytest
import torch

from pipemare_exp import metrics
from pipemare_exp.errors import UserError
from pipemare_exp.experiment.config.identity import run_name
from pipemare_exp.experiment.config.load import load
from pipemare_exp.experiment.evaluate import evaluate
from pipemare_exp.experiment.runs.folder import Run
from pipemare_exp.experiment.training import assemble
from pipemare_exp.experiment.training.session import train
from tests.experiment.tiny_training import TINY, prepared, run_once

RESULT_KEYS = [
    "outcome", "step", "epoch", "metric", "best", "last", "test", "config_hash", "seed", "method", "task", "scale",
    "seconds", "resumed_from", "rows",
]  # fmt: skip


def test_a_finished_run_is_a_no_op_that_says_so(tmp_path: Path) -> None:
    overrides = [*TINY, "method=async", "max_steps=2"]
    first, _ = run_once(overrides, tmp_path)
    assert list(first.summary) == RESULT_KEYS
    assert json.loads((first.run.path / "result.json").read_text()) == first.summary
    before = {path: path.stat().st_mtime_ns for path in first.run.path.rglob("*")}
    again, said = run_once(overrides, tmp_path)
    assert not again.fresh and again.summary == first.summary
    assert "nothing to do" in said and "finished" in said
    assert {path: path.stat().st_mtime_ns for path in first.run.path.rglob("*")} == before


def test_the_folder_holds_what_is_promised_and_eval_gives_the_logged_number(tmp_path: Path) -> None:
    overrides = [*TINY, "method=pipemare", "max_steps=5", "seed=3"]
    out = io.StringIO()
    done = train(load(overrides), overrides, runs=tmp_path, out=out)
    run = done.run
    assert run.name.startswith("digits-pipemare-demo-s3-")
    assert run.overrides == overrides
    assert run.config["pipeline"]["boundaries"][0] == 0 and run.config["pipeline"]["stages"] == 12
    assert run.meta["command"] == "pipemare train " + " ".join(overrides)
    assert {"commit", "dirty", "versions", "machine", "threads", "created", "notes"} <= run.meta.keys()
    assert run.status["state"] == "finished" and run.status["step"] == 5
    assert [row["step"] for row in run.metrics("train")] == [4, 5]
    (row,) = run.metrics("eval")
    assert (row["step"], row["split"]) == (5, "test")
    assert done.summary["best"] == done.summary["last"] == row["accuracy"] == done.summary["test"]["accuracy"]
    scores = evaluate(run)
    assert (scores["accuracy"], scores["loss"], scores["logged"]) == (row["accuracy"], row["loss"], row["accuracy"])


def test_a_run_with_validation_never_scores_the_test_images(tmp_path: Path) -> None:
    done, _ = run_once([*TINY, "method=gpipe", "max_steps=1", "data.validation=200"], tmp_path)
    assert done.summary["test"] is None
    assert [row["split"] for row in done.run.metrics("eval")] == ["valid"]


@pytest.mark.parametrize("bad", [1, 6])
def test_divergence_is_an_outcome_with_the_first_step_that_was_not_finite(
    bad: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = assemble.Emulator.step

    def poisoned(self, *args, **kwargs):
        loss = original(self, *args, **kwargs)
        return loss * math.nan if self.version >= bad else loss

    monkeypatch.setattr(assemble.Emulator, "step", poisoned)
    overrides = [*TINY, "method=async", "checkpoint.every_steps=1000", "max_steps=20"]
    done, said = run_once(overrides, tmp_path)
    assert (done.outcome, done.exit_code) == ("diverged", 0)
    assert (done.summary["step"], done.summary["best"], done.summary["last"]) == (bad, None, None)
    outcome = {"kind": "outcome", "outcome": "diverged", "step": bad, "epoch": 1, "cause": "loss"}
    assert done.run.metrics()[-1] == outcome
    assert [row["step"] for row in done.run.metrics("train")] == [step for step in (4, 5) if step < bad]
    assert not list(done.run.checkpoints.iterdir())
    assert f"diverged: at step {bad}" in said
    again, said = run_once(overrides, tmp_path)
    assert not again.fresh and "diverged" in said


def test_a_real_divergence_ends_the_run_and_keeps_no_checkpoint_of_it(tmp_path: Path) -> None:
    overrides = [*TINY, "method=async", "optimizer.rate=1e8", "max_steps=12", "checkpoint.every_steps=1"]
    done, _ = run_once(overrides, tmp_path)
    assert done.outcome == "diverged" and done.summary["step"] <= 12
    for path in done.run.checkpoints.glob("*.pt"):
        assert torch.load(path, weights_only=True)["step"] < done.summary["step"]


def test_an_exception_is_recorded_and_the_run_goes_on_after_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    overrides = [*TINY, "method=gpipe", "max_steps=7"]
    original = assemble.Emulator.step

    def failing(self, *args, **kwargs):
        if self.version == 5:
            raise RuntimeError("the device is on fire\nand more")
        return original(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(assemble.Emulator, "step", failing)
        done, said = run_once(overrides, tmp_path)
    assert (done.outcome, done.exit_code, done.run.outcome) == ("failed", 1, "failed")
    assert done.run.result is None
    assert done.run.status["error"] == "RuntimeError: the device is on fire"
    assert "and more" in (done.run.path / "error.txt").read_text()
    assert "RuntimeError: the device is on fire" in said
    again, said = run_once(overrides, tmp_path)
    assert again.outcome == "finished" and "resumed from step 3" in said


def test_a_run_that_another_process_trains_is_left_alone(tmp_path: Path) -> None:
    overrides = [*TINY, "method=gpipe", "max_steps=1"]
    cfg = assemble.prepare(load(overrides)).cfg
    run = Run(tmp_path / run_name(cfg))
    run.create()
    with run.lock(), pytest.raises(UserError, match="another process"):
        run_once(overrides, tmp_path)
    assert run_once(overrides, tmp_path)[0].outcome == "finished"


def test_a_tracker_that_fails_costs_the_run_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from pipemare_exp.experiment.tracking import tracker as tracking

    class Broken:
        def log_rows(self, rows: list[dict]) -> None:
            raise OSError("no such server")

        def finish(self, result: dict) -> None:
            raise AssertionError("a tracker that failed is left alone")

    monkeypatch.setattr(tracking, "open", lambda cfg, run: Broken())
    overrides = [*TINY, "tracking=mlflow", "method=gpipe", "max_steps=8"]
    done, _ = run_once(overrides, tmp_path)
    assert done.outcome == "finished"
    assert [record.message for record in caplog.records if "no such server" in record.message] != []
    assert len([record for record in caplog.records if "tracking failed" in record.message]) == 1


def test_evaluation_every_second_epoch_and_at_the_end(tmp_path: Path) -> None:
    overrides = [*TINY, "data.batch_size=700", "epochs=3", "evaluation.every_epochs=2", "method=gpipe"]
    done, _ = run_once(overrides, tmp_path)
    assert [(row["step"], row["epoch"]) for row in done.run.metrics("eval")] == [(4, 2), (6, 3)]
    assert (done.summary["step"], done.summary["epoch"]) == (6, 3)


def test_a_refused_option_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="method.name=gpipe with T2"):
        run_once([*TINY, "method=gpipe", "method.discrepancy_correction.enabled=true"], tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_the_best_value_of_a_metric_of_which_less_is_better_is_the_smallest(tmp_path, monkeypatch):
    monkeypatch.setitem(metrics.METRICS, "loss", metrics.Metric("loss", "loss", "loss", "", higher_is_better=False))
    overrides = [*TINY, "method=gpipe", "epochs=3"]
    made = prepared(overrides)
    monkeypatch.setattr(made.task, "metric", "loss")
    result = train(made.cfg, overrides, runs=tmp_path, prepared=made)
    losses = [row["loss"] for row in result.run.metrics("eval")]
    assert len(losses) == 3 and max(losses) > min(losses)
    assert (result.summary["best"], result.summary["last"]) == (min(losses), losses[-1])
