"""Runs from start to outcome: resumed bit for bit, found finished, diverged, failed, locked, damaged."""

from __future__ import annotations

import io
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from pipemare_exp.errors import UserError
from pipemare_exp.experiment import assemble, config
from pipemare_exp.experiment.evaluate import evaluate
from pipemare_exp.experiment.run_directory import Run, find_runs
from pipemare_exp.experiment.train import Result, train

# A narrow network in 12 stages: the first one's delay is 23/4 steps, so that the pipeline fills during steps 1 to 6.
TINY = [
    "tracking=none",
    "progress=none",
    "model.width=2",
    "data.augment=true",
    "pipeline.stages=12",
    "pipeline.microbatches=4",
    "log_every=4",
    "checkpoint.every_steps=3",
]
METHODS = {
    "gpipe": [],
    "hogwild_t1": ["method.lr_rescheduling.steps=10"],
    "pipedream": [],
    "t1_t2": ["method.lr_rescheduling.steps=10"],
    "pipemare": [
        "method.lr_rescheduling.steps=10",
        "method.sync_warmup.epochs=null",
        "method.sync_warmup.steps=4",
    ],
}
RESULT_KEYS = [
    "outcome", "step", "epoch", "metric", "best", "last", "test", "config_hash", "seed", "method", "task", "scale",
    "seconds", "resumed_from",
]  # fmt: skip


class DroppingLinear(nn.Linear):
    """A linear layer with dropout before it, called twice, whose weights keep the names of a plain one."""

    def __init__(self, plain: nn.Linear):
        super().__init__(plain.in_features, plain.out_features)
        self.load_state_dict(plain.state_dict())
        self.dropout = nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(self.dropout(x) + self.dropout(x), self.weight, self.bias)


def prepared(overrides: list[str]) -> assemble.Prepared:
    made = assemble.prepare(config.load(overrides))
    made.model.fc = DroppingLinear(made.model.fc)  # type: ignore[assignment, arg-type]
    return made


def run_once(overrides: list[str], runs: Path) -> tuple[Result, str]:
    out = io.StringIO()
    made = prepared(overrides)
    return train(made.cfg, overrides, runs=runs, out=out, prepared=made), out.getvalue()


class Killed(BaseException):
    """Stands for SIGKILL within one process: nothing catches it, nothing is written after it."""


def kill_at(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    original = assemble.Emulator.step

    def dying(self, *args, **kwargs):
        if self.step_index == step:
            raise Killed
        return original(self, *args, **kwargs)

    monkeypatch.setattr(assemble.Emulator, "step", dying)


def assert_same(left: object, right: object, where: str = "") -> None:
    if isinstance(left, Tensor):
        assert isinstance(right, Tensor) and torch.equal(left, right), where
    elif isinstance(left, dict):
        assert isinstance(right, dict) and left.keys() == right.keys(), where
        for key in left:
            if key != "seconds":
                assert_same(left[key], right[key], f"{where}.{key}")
    elif isinstance(left, list | tuple):
        assert isinstance(right, list | tuple) and len(left) == len(right), where
        for index, (a, b) in enumerate(zip(left, right, strict=True)):
            assert_same(a, b, f"{where}[{index}]")
    else:
        assert left == right, where


def last_state(run: Run) -> dict:
    return torch.load(run.checkpoints / "last.pt", weights_only=True)


def assert_same_run(left: Run, right: Run) -> None:
    assert_same(last_state(left), last_state(right), left.name)
    assert_same(left.metrics(), right.metrics(), "metrics")
    results = [dict(run.result or {}) for run in (left, right)]
    for result in results:
        del result["seconds"], result["resumed_from"]
    assert results[0] == results[1]


@pytest.mark.parametrize("method", METHODS)
def test_kill_and_resume_is_bitwise_the_undisturbed_run(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = [*TINY, f"method={method}", *METHODS[method], "max_steps=25"]  # an epoch ends at step 22
    whole, _ = run_once(overrides, tmp_path / "whole")
    assert whole.outcome == "finished"

    at = {"gpipe": 8, "hogwild_t1": 7, "pipedream": 5, "t1_t2": 4, "pipemare": 23}[method]  # 4 and 5: within the fill
    with monkeypatch.context() as patch, pytest.raises(Killed):
        kill_at(at, patch)
        run_once(overrides, tmp_path / "killed")
    (killed,) = find_runs(tmp_path / "killed")
    assert (killed.outcome, killed.result) == ("interrupted", None)

    resumed, said = run_once(overrides, tmp_path / "killed")
    at_checkpoint = 22 if at == 23 else at // 3 * 3
    assert f"resumed from step {at_checkpoint} of 25" in said
    assert resumed.summary["resumed_from"] == [at_checkpoint]
    assert_same_run(resumed.run, whole.run)


def test_a_damaged_last_checkpoint_costs_only_the_steps_since_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = [*TINY, "method=t1_t2", "max_steps=9"]
    whole, _ = run_once(overrides, tmp_path / "whole")
    with monkeypatch.context() as patch, pytest.raises(Killed):
        kill_at(8, patch)
        run_once(overrides, tmp_path / "killed")
    (killed,) = find_runs(tmp_path / "killed")
    os.truncate(killed.checkpoints / "last.pt", 1000)
    resumed, said = run_once(overrides, tmp_path / "killed")
    assert "damaged" in said and "resumed from step 3 of 9" in said
    assert_same_run(resumed.run, whole.run)

    (killed.path / "result.json").unlink()
    for name in ("last.pt", "previous.pt"):
        os.truncate(killed.checkpoints / name, 1000)
    before = {path.name: path.read_bytes() for path in killed.path.iterdir() if path.is_file()}
    with pytest.raises(UserError, match="no readable checkpoint"):
        run_once(overrides, tmp_path / "killed")
    assert {path.name: path.read_bytes() for path in killed.path.iterdir() if path.is_file()} == before


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
    done = train(config.load(overrides), overrides, runs=tmp_path, out=out)
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
        return loss * math.nan if self.step_index >= bad else loss

    monkeypatch.setattr(assemble.Emulator, "step", poisoned)
    overrides = [*TINY, "method=async", "checkpoint.every_steps=1000", "max_steps=20"]
    done, said = run_once(overrides, tmp_path)
    assert (done.outcome, done.exit_code) == ("diverged", 0)
    assert (done.summary["step"], done.summary["best"], done.summary["last"]) == (bad, None, None)
    assert done.run.metrics()[-1] == {"kind": "outcome", "outcome": "diverged", "step": bad, "epoch": 1}
    assert [row["step"] for row in done.run.metrics("train")] == [step for step in (4, 5) if step < bad]
    assert not list(done.run.checkpoints.iterdir())
    assert f"diverged: at step {bad}" in said
    again, said = run_once(overrides, tmp_path)
    assert not again.fresh and "diverged" in said


def test_a_real_divergence_ends_the_run_and_keeps_no_checkpoint_of_it(tmp_path: Path) -> None:
    overrides = [*TINY, "method=async", "optimizer.rate=1e18", "max_steps=12", "checkpoint.every_steps=1"]
    done, _ = run_once(overrides, tmp_path)
    assert done.outcome == "diverged" and done.summary["step"] <= 12
    for path in done.run.checkpoints.glob("*.pt"):
        assert torch.load(path, weights_only=True)["step"] < done.summary["step"]


def test_weights_that_are_not_finite_after_a_finite_loss_are_a_divergence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assemble.Emulator, "finite", lambda self: False)
    done, _ = run_once([*TINY, "method=gpipe", "max_steps=2", "checkpoint.every_steps=1000"], tmp_path)
    assert (done.outcome, done.summary["step"]) == ("diverged", 2)


def test_an_exception_is_recorded_and_the_run_goes_on_after_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    overrides = [*TINY, "method=gpipe", "max_steps=7"]
    original = assemble.Emulator.step

    def failing(self, *args, **kwargs):
        if self.step_index == 5:
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
    cfg = assemble.prepare(config.load(overrides)).cfg
    run = Run(tmp_path / config.run_name(cfg))
    run.create()
    with run.lock(), pytest.raises(UserError, match="another process"):
        run_once(overrides, tmp_path)
    assert run_once(overrides, tmp_path)[0].outcome == "finished"


def test_a_tracker_that_fails_costs_the_run_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from pipemare_exp.experiment import tracking

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


COMMAND = [sys.executable, "-m", "pipemare_exp", "train"]


def start_and_signal(overrides: list[str], runs: Path, after: int, number: int) -> tuple[int, str]:
    """Train in a process of its own, send it `number` once step `after` is logged; (exit code, output)."""
    process = subprocess.Popen(
        [*COMMAND, *overrides, "--runs", str(runs)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        if any(row["step"] >= after for run in find_runs(runs) for row in run.metrics("train")):
            process.send_signal(number)
            break
        time.sleep(0.01)
    output, _ = process.communicate(timeout=120)
    return process.returncode, output


def test_sigterm_then_sigkill_then_go_on_equals_the_undisturbed_run(tmp_path: Path) -> None:
    overrides = [*TINY, "method=pipemare", "max_steps=160", "log_every=2", "checkpoint.every_steps=20", "threads=1"]
    code, output = start_and_signal(overrides, tmp_path / "disturbed", 4, signal.SIGTERM)
    assert code == 143, output
    assert "interrupted at step" in output and "goes on" in output
    (run,) = find_runs(tmp_path / "disturbed")
    first = run.status["step"]
    assert run.outcome == "interrupted" and last_state(run)["step"] == first

    code, output = start_and_signal(overrides, tmp_path / "disturbed", first + 30, signal.SIGKILL)
    assert code == -signal.SIGKILL, output
    assert f"resumed from step {first} of 160" in output
    assert run.outcome == "interrupted"

    out = io.StringIO()
    resumed = train(config.load(overrides), overrides, runs=tmp_path / "disturbed", out=out)
    second = resumed.summary["resumed_from"][1]
    assert resumed.summary["resumed_from"][0] == first and second > first
    assert second % 20 == 0 or second % 22 == 0  # a periodic checkpoint, or one at an epoch's end
    whole = train(config.load(overrides), overrides, runs=tmp_path / "whole", out=out)
    assert_same_run(resumed.run, whole.run)


def test_a_refused_option_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pipemare_exp.methods import PipeMare

    monkeypatch.setattr(PipeMare, "cannot", {"decay": "it was so decided"})
    with pytest.raises(UserError, match="decay with method pipemare: it was so decided"):
        run_once([*TINY, "method=t2", "max_steps=1"], tmp_path / "runs")
    assert not (tmp_path / "runs").exists()
