"""tracking=tensorboard: event files with the scalars that MLflow gets, once each, also after a resume."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipemare_exp.errors import UserError
from pipemare_exp.experiment.runs.folder import Run
from pipemare_exp.experiment.tracking import tensorboard
from pipemare_exp.experiment.tracking.scalars import final_of, metrics_of
from tests.experiment.tiny_training import TINY, run_once

OVERRIDES = [*TINY, "tracking=tensorboard", "method=gpipe", "max_steps=8"]


def stored(run: Run) -> dict[str, list[tuple[int, float]]]:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(run.path / "tensorboard")).Reload()
    return {
        name: [(event.step, pytest.approx(event.value)) for event in events.Scalars(name)]
        for name in events.Tags()["scalars"]
    }


def expected(run: Run) -> dict[str, list[tuple[int, float]]]:
    found: dict[str, list[tuple[int, float]]] = {}
    for row in run.metrics():
        for name, value in metrics_of(row).items():
            found.setdefault(name, []).append((row["step"], value))
    result = run.result or {}
    return found | {name: [(result["step"], value)] for name, value in final_of(result).items()}


def test_every_row_is_stored_once_also_where_a_run_was_interrupted(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    done, _ = run_once(OVERRIDES, tmp_path)
    assert {"train/loss", "test/accuracy", "best", "final/accuracy"} <= stored(done.run).keys()
    assert stored(done.run) == expected(done.run)

    # As a kill leaves it: rows after the checkpoint of step 6, which are trained again.
    (done.run.path / "result.json").unlink()
    (done.run.checkpoints / "last.pt").unlink()
    again, said = run_once(OVERRIDES, tmp_path)
    assert "resumed from step 6" in said
    assert stored(again.run) == expected(again.run)
    assert [step for step, _ in stored(again.run)["train/loss"]] == [4, 8]
    assert len(list((again.run.path / "tensorboard").iterdir())) == 1


def test_without_the_package_a_run_is_refused_and_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensorboard, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="pip install tensorboard"):
        run_once(OVERRIDES, tmp_path / "runs")
    assert not (tmp_path / "runs").exists()
