"""What rows say of a training's health: the gradient's norm, the longest delay, what is not finite."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from pipemare_exp.errors import UserError
from pipemare_exp.experiment.config.load import load
from pipemare_exp.experiment.tracking.scalars import metrics_of
from pipemare_exp.experiment.training import assemble
from pipemare_exp.methods.pipemare import PipeMare
from tests.experiment.tiny_training import TINY, assert_same, last_state, run_once

COUNTS = ["non_finite_weights", "non_finite_buffers", "non_finite_optimizer", "non_finite_method"]
T2 = "method.discrepancy_correction.enabled=true"


def test_rows_have_the_norm_the_delay_and_the_counts(tmp_path: Path) -> None:
    done, _ = run_once([*TINY, "method=async", "max_steps=12"], tmp_path)
    trained = done.run.metrics("train")
    assert [row["step"] for row in trained] == [4, 8, 12]
    assert all(0 < row["grad_norm"] < 100 for row in trained)
    # The first of 12 stages is late by 23/4 steps at most 6, and no forward reads a version before 0.
    assert [row["max_delay"] for row in trained] == [3, 6, 6]
    (scored,) = done.run.metrics("eval")
    assert [scored[name] for name in COUNTS] == [0, 0, 0, 0]
    assert metrics_of(trained[0])["train/grad_norm"] == trained[0]["grad_norm"]
    assert metrics_of(scored)["health/non_finite_buffers"] == 0.0


def test_a_synchronous_step_is_never_late(tmp_path: Path) -> None:
    done, _ = run_once([*TINY, "method=gpipe", "max_steps=4"], tmp_path)
    assert [row["max_delay"] for row in done.run.metrics("train")] == [0]


def test_looking_changes_no_bit(tmp_path: Path) -> None:
    states = []
    for name, more in {
        "seldom": ["log_every=1000"],
        "often": ["log_every=1"],
        "diagnosed": ["log_every=3", "diagnostics.every_steps=2", "diagnostics.at_evaluations=true"],
    }.items():
        done, _ = run_once([*TINY, "method=pipemare", "max_steps=14", *more], tmp_path / name)
        states.append(last_state(done.run))
        assert len(done.run.metrics("staleness")) == (7 if name == "diagnosed" else 0)
    for other in states[1:]:
        for key in ("emulator", "best", "latest", "config_hash"):
            assert_same(states[0][key], other[key], key)


def poison_buffers(self: assemble.Emulator) -> None:
    next(buffer for name, buffer in self.model.named_buffers() if name.endswith("running_var")).fill_(math.inf)


def poison_optimizer(self: assemble.Emulator) -> None:
    next(iter(self.weights.optimizer.torch.state.values()))["momentum_buffer"][:3] = math.nan


def poison_method(self: assemble.Emulator) -> None:
    delta = self.method.buffers["delta"][0]
    assert delta is not None
    delta[0] = math.inf


@pytest.mark.parametrize(
    ("cause", "poison"), [("buffers", poison_buffers), ("optimizer", poison_optimizer), ("method", poison_method)]
)
def test_a_state_that_is_not_finite_is_a_divergence(
    cause: str, poison, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = assemble.Emulator.step

    def poisoned(self, *args, **kwargs):
        loss = original(self, *args, **kwargs)
        if self.version == 6:
            poison(self)
        return loss

    monkeypatch.setattr(assemble.Emulator, "step", poisoned)
    done, said = run_once([*TINY, "method=async", T2, "max_steps=6"], tmp_path)
    assert (done.outcome, done.exit_code, done.summary["cause"]) == ("diverged", 0, cause)
    row = done.run.metrics()[-1]
    assert (row["outcome"], row["step"], row["cause"]) == ("diverged", 6, cause)
    assert row[f"non_finite_{cause}"] > 0 and row["non_finite_weights"] == 0
    assert not done.run.metrics("eval") and "not finite)" in said
    assert metrics_of(row)[f"health/non_finite_{cause}"] > 0


def test_weights_that_are_not_finite_after_a_finite_loss_are_a_divergence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = assemble.Emulator.non_finite
    monkeypatch.setattr(assemble.Emulator, "non_finite", lambda self: {**original(self), "weights": 3})
    done, _ = run_once([*TINY, "method=gpipe", "max_steps=2", "checkpoint.every_steps=1000"], tmp_path)
    assert (done.outcome, done.summary["step"], done.summary["cause"]) == ("diverged", 2, "weights")


def test_the_loss_of_an_evaluation_is_told_and_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Early BatchNorm statistics may overflow a loss in eval mode; such runs have recovered."""
    task = assemble.prepare(load([*TINY, "method=gpipe"])).task
    original = type(task).evaluate
    monkeypatch.setattr(type(task), "evaluate", lambda *args: {**original(*args), "loss": math.inf})
    done, _ = run_once([*TINY, "method=gpipe", "max_steps=2"], tmp_path)
    assert done.outcome == "finished" and "cause" not in done.summary
    assert done.run.metrics("eval")[0]["loss"] is None


def test_a_mask_of_infinities_is_no_divergence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = assemble.Prepared.emulator

    def masked(self: assemble.Prepared) -> assemble.Emulator:
        self.model.register_buffer("mask", torch.full((2, 2), -math.inf).triu(1))
        return original(self)

    monkeypatch.setattr(assemble.Prepared, "emulator", masked)
    done, _ = run_once([*TINY, "method=gpipe", "max_steps=2"], tmp_path)
    assert done.outcome == "finished"


def test_a_resumed_run_has_the_rows_of_an_undisturbed_one(tmp_path: Path) -> None:
    overrides = [*TINY, "method=pipemare", "max_steps=14", "diagnostics.every_steps=5"]
    whole, _ = run_once(overrides, tmp_path / "whole")
    original = PipeMare.updated

    def failing(self: PipeMare, step: int, changes) -> None:
        if step == 8:
            raise RuntimeError("stop here")
        original(self, step, changes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PipeMare, "updated", failing)
        assert run_once(overrides, tmp_path / "parts")[0].outcome == "failed"
    done, _ = run_once(overrides, tmp_path / "parts")
    assert_same(done.run.metrics(), whole.run.metrics(), "rows")


def test_diagnostics_in_the_runtime_are_refused_with_the_reason() -> None:
    settings = ["task=digits", "engine=runtime", "engine.ranks=2", "diagnostics.at_evaluations=true"]
    with pytest.raises(UserError, match="a rank of a real pipeline has not kept these"):
        assemble.prepare(load(settings))
