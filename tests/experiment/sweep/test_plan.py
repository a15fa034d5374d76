"""What a sweep knows before it trains: each cell's run, its state, the time left."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from pipemare_exp.errors import UserError
from pipemare_exp.experiment.config.identity import run_name
from pipemare_exp.experiment.config.lengths import last_step
from pipemare_exp.experiment.config.load import load
from pipemare_exp.experiment.runs.folder import Run
from pipemare_exp.experiment.sweep import plan as sweep_plan
from pipemare_exp.experiment.sweep.plan import Planned, seconds_left
from pipemare_exp.experiment.sweep.study import Cell
from pipemare_exp.experiment.training import assemble

SMALL = ("model.width=2", "pipeline.microbatches=2", "tracking=none")


def cell(method: str = "t1", *overrides: str, task: str = "digits", seed: int = 0, point: Sequence = ()) -> Cell:
    texts = (f"task={task}", f"method={method}", "scale=demo", f"seed={seed}", *SMALL, *overrides)
    return Cell(task, "demo", method, seed, tuple(point), texts)


def finish(run: Run, seconds: float, outcome: str = "finished", **more: object) -> None:
    run.create()
    rest = {"outcome": outcome, "step": 550, "metric": "accuracy", "best": 91.0, "last": 90.0, "seconds": seconds}
    (run.path / "result.json").write_text(json.dumps({**rest, **more}))


def test_a_cell_leads_to_the_run_that_train_makes_of_the_same_overrides(tmp_path: Path) -> None:
    cells = [cell("gpipe"), cell("t1_t2", "pipeline.recompute=sqrt"), cell("hogwild", "method.delay_scale=2")]
    planned = sweep_plan.plan(cells, tmp_path)
    for one in planned:
        cfg = assemble.prepare(load(one.cell.overrides)).cfg
        assert one.run is not None and one.run.path == tmp_path / run_name(cfg)
        assert one.steps == last_step(cfg) == 550
    assert [one.state for one in planned] == ["missing"] * 3
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", ["", "{", "[1]"])
def test_a_run_whose_status_was_lost_in_a_power_cut_is_interrupted(content: str, tmp_path: Path) -> None:
    (one,) = sweep_plan.plan([cell("t1")], tmp_path)
    assert one.run is not None
    one.run.create()
    (one.run.path / "config.yaml").write_text("seed: 0")
    (one.run.path / "status.json").write_text(content)
    assert (one.state, one.error) == ("interrupted", "")


def test_cells_of_one_run_are_one(tmp_path: Path) -> None:
    planned = sweep_plan.plan([cell("t1", "pipeline.recompute=7"), cell("t1", "pipeline.recompute=sqrt")], tmp_path)
    assert [one.cell.overrides[-1] for one in planned] == ["pipeline.recompute=7"]  # of 43 stages


def test_one_refused_cell_is_a_failed_one_and_all_of_them_a_mistake(tmp_path: Path) -> None:
    good, bad = cell("t1"), cell("t1", "pipeline.stages=44")
    planned = sweep_plan.plan([bad, good], tmp_path)
    assert [one.state for one in planned] == ["failed", "missing"]
    assert "only 43 weight units" in planned[0].error
    with pytest.raises(UserError, match="only 43 weight units"):
        sweep_plan.plan([bad, cell("t2", "pipeline.stages=44")], tmp_path)


@pytest.fixture
def locks() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_states(tmp_path: Path, locks: ExitStack) -> None:
    names = ("missing", "done", "diverged", "failed", "interrupted", "killed", "running", "torn")
    runs = {name: Run(tmp_path / name) for name in names}
    for name, run in runs.items():
        if name != "missing":
            run.create()
    finish(runs["done"], 1.0)
    finish(runs["diverged"], 1.0, "diverged")
    runs["failed"].set_status("failed", 3, error="ValueError: no")
    runs["interrupted"].set_status("interrupted", 3)
    runs["killed"].set_status("running", 3)  # and nobody holds the lock
    runs["running"].set_status("running", 3)
    (runs["torn"].path / "config.yaml").write_text("seed: 0\n")  # killed before its first status
    locks.enter_context(runs["running"].lock())
    states = {name: Planned(cell(), run, 10).state for name, run in runs.items()}
    assert states == {name: name for name in names} | {"killed": "interrupted", "torn": "interrupted"}
    assert Planned(cell(), runs["failed"], 10).error == "ValueError: no"


def test_the_time_left_goes_by_the_most_alike_cells_that_finished(tmp_path: Path) -> None:
    def planned(name: str, method: str, steps: int, task: str = "digits", **point: object) -> Planned:
        return Planned(cell(method, task=task, point=tuple(point.items())), Run(tmp_path / name), steps)

    slow, fast = planned("slow", "t1", 100, stages=43), planned("fast", "t1", 100, stages=5)
    todo = [
        planned("same", "t1", 200, stages=43),  # 3 s a step, as slow
        planned("method", "t1", 10, stages=11),  # the median of 3 and 1
        planned("task", "gpipe", 10),  # likewise
    ]
    assert seconds_left([slow, fast, *todo]) is None
    finish(slow.run, 300.0)
    finish(fast.run, 100.0)
    assert seconds_left([slow, fast]) == 0.0
    assert seconds_left([slow, fast, *todo]) == pytest.approx(600 + 20 + 20)
    assert seconds_left([slow, fast, *todo], jobs=2) == pytest.approx(320)
    assert seconds_left([slow, fast, *todo], jobs=8) == pytest.approx(640 / 3)
    begun = todo[0].run
    begun.create()
    begun.set_status("interrupted", 150)
    begun.append([{"kind": "train", "step": 150, "loss": 1.0}])
    assert seconds_left([slow, fast, *todo]) == pytest.approx(150 + 20 + 20)
    assert seconds_left([slow, fast, planned("other", "t1", 10, task="numerals")]) is None


def test_a_diverged_cell_says_nothing_about_the_time_of_others(tmp_path: Path) -> None:
    ended, todo = Planned(cell(), Run(tmp_path / "a"), 100), Planned(cell(seed=1), Run(tmp_path / "b"), 100)
    finish(ended.run, 5.0, "diverged", step=10)
    assert seconds_left([ended, todo]) is None


def test_json(tmp_path: Path) -> None:
    one = Planned(cell(), Run(tmp_path / "run"), 550)
    finish(one.run, 12.5)
    assert sweep_plan.as_json([one, Planned(cell("t2"), None, refused="no")]) == [
        {
            "task": "digits", "scale": "demo", "method": "t1", "seed": 0, "overrides": list(cell().overrides),
            "run": "run", "state": "done", "step": 550, "steps": 550, "seconds": 12.5, "error": None,
        },
        {
            "task": "digits", "scale": "demo", "method": "t2", "seed": 0, "overrides": list(cell("t2").overrides),
            "run": None, "state": "failed", "step": 0, "steps": 0, "seconds": None, "error": "no",
        },
    ]  # fmt: skip
