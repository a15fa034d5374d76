"""The demo on real, short trainings: table, figure, MLflow, no-op; and trainings that fail or are interrupted."""

import csv
import os
import signal
import time
from pathlib import Path

import pytest

from pipemare_exp import cli
from pipemare_exp.errors import UserError
from pipemare_exp.experiment.runs.folder import Run
from pipemare_exp.experiment.sweep import demo

SHORT = ["--set", "epochs=1", "--set", "checkpoint.every_steps=5"]


def test_cells_go_seed_by_seed(monkeypatch, tmp_path):
    monkeypatch.setitem(demo.DEMO_CELLS, "digits", ("gpipe", "t1_t2"))
    cells = demo.cells(["digits"], 2, tmp_path, ["epochs=3"])
    assert [(cell.method, cell.seed) for cell in cells] == [("gpipe", 0), ("t1_t2", 0), ("gpipe", 1), ("t1_t2", 1)]
    assert {cell.steps for cell in cells} == {3 * 22}
    assert len({cell.run.path for cell in cells}) == 4
    with pytest.raises(UserError, match='no demo of task "digit".*did you mean "digits"'):
        demo.cells(["digit"], 1, tmp_path)


def test_demo_trains_compares_draws_names_failures_and_is_a_no_op_the_second_time(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(demo.DEMO_CELLS, "digits", ("async", "gpipe", "pipemare"))
    monkeypatch.setenv("OMP_NUM_THREADS", "4")  # two trainings side by side take one thread each all the same
    root = tmp_path / "runs"
    root.mkdir()
    broken = demo.cells(["digits"], 1, root, SHORT[1::2])[0]
    broken.run.path.mkdir()
    (broken.run.path / "checkpoints").write_text("in the way")
    arguments = ["demo", "--runs", str(root), "--tasks", "digits", *SHORT]
    assert cli.main(arguments) == 1
    first = capsys.readouterr().out
    (line,) = (line for line in first.splitlines() if line.startswith("FAILED"))
    assert line.startswith("FAILED digits async, seed 0: pipemare: error: cannot write the run folder")

    runs = [Run(path) for path in root.iterdir() if path != broken.run.path]
    results = {run.config["method"]["label"]: run.result for run in runs}
    assert set(results) == {"gpipe", "t1+t2+t3"}
    assert {run.meta["threads"] for run in runs} == {1}
    for label, result in results.items():
        assert result["outcome"] == "finished" and result["step"] == 22
        (line,) = (line for line in first.splitlines() if line.startswith(f"{label} "))
        assert f"{result['last']:.1f}" in line
    with open(tmp_path / "demo" / "digits_over_epochs.csv", newline="") as file:
        drawn = {row["method"]: float(row["mean"]) for row in csv.DictReader(file) if row["epoch"] == "1"}
    assert drawn == {label: pytest.approx(result["last"]) for label, result in results.items()}
    assert (tmp_path / "demo" / "digits_over_epochs.png").stat().st_size > 1000

    assert f"--backend-store-uri 'sqlite:///{tmp_path / 'mlflow.db'}'" in first
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'mlflow.db'}")
    tracked = client.search_runs([client.get_experiment_by_name("pipemare").experiment_id])
    assert {run.data.tags["method"]: run.data.metrics["test/accuracy"] for run in tracked} == {
        label: result["last"] for label, result in results.items()
    }

    monkeypatch.setitem(demo.DEMO_CELLS, "digits", ("gpipe", "pipemare"))
    began = [(run.path / "result.json").stat().st_mtime_ns for run in runs]
    assert cli.main(arguments) == 0
    again = capsys.readouterr().out
    assert "2 of 2 runs are done already" in again and "t1+t2+t3" in again
    assert began == [(run.path / "result.json").stat().st_mtime_ns for run in runs]


def test_long_trainings_begin_first(monkeypatch, tmp_path):
    begun = []

    def start(cell, root, extra, work):
        begun.append(cell.method)
        cell.process = type("Ended", (), {"is_alive": lambda self: False, "exitcode": 0})()

    monkeypatch.setattr(demo, "_start", start)
    lengths = {"a": 5, "b": 9, "c": 5, "d": 12}
    cells = [demo.Cell("digits", method, 0, Run(tmp_path / method), steps) for method, steps in lengths.items()]
    demo.train(cells, tmp_path, 1, lambda: None)
    assert begun == ["d", "b", "a", "c"]


def saves_when_asked(arguments):
    """Stands in for a training: writes what it would write on SIGINT, and how often it was asked."""
    folder = Path(arguments[-1]) / arguments[2]
    asked = []
    signal.signal(signal.SIGINT, lambda *_: asked.append(1))
    folder.with_suffix(".ready").touch()
    while not asked:
        time.sleep(0.01)
    time.sleep(0.5)
    folder.with_suffix(".saved").write_text(str(len(asked)))
    return 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_waits_for_the_checkpoints_of_the_children(tmp_path, number):
    cells = [demo.Cell("digits", method, 0, Run(tmp_path / method), 10) for method in ("gpipe", "async", "t1")]
    said = []

    def tick():
        if len(list(tmp_path.glob("*.ready"))) == 2:
            os.kill(os.getpid(), number)

    # A shell starts what it puts in the background with SIGINT ignored.
    inherited = signal.signal(signal.SIGINT, signal.default_int_handler)
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(KeyboardInterrupt):
            demo.train(cells, tmp_path, 2, tick, stopping=lambda: said.append(True), work=saves_when_asked)
    finally:
        signal.signal(signal.SIGINT, inherited)
    assert {path.name: path.read_text() for path in tmp_path.glob("*.saved")} == {
        "method=gpipe.saved": "1",
        "method=async.saved": "1",
    }
    assert said == [True]
    assert signal.getsignal(signal.SIGTERM) is before
    assert all(cell.process is None or cell.process.exitcode == 0 for cell in cells)
