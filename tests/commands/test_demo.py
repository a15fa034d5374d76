"""The demo on real, short trainings: table, figure, MLflow, failures named, and nothing to do the second time."""

import csv
from pathlib import Path

import pytest

from pipemare_exp import cli
from pipemare_exp.experiment.runs.folder import Run
from pipemare_exp.experiment.sweep import study_file
from pipemare_exp.experiment.sweep.plan import plan
from pipemare_exp.experiment.sweep.study import Place, Study, expand

SHORT = ["epochs=1", "checkpoint.every_steps=5"]


def study(*methods: str) -> Study:
    places = {"demo": {"digits": Place((0,))}}
    return Study("demo", "a smaller demo", (), {}, ({"method": list(methods)},), (), places)


def test_the_demo_is_ten_runs_and_more_seeds_are_more() -> None:
    demo = study_file.load("demo")
    cells = [cell for task in ("digits", "numerals") for cell in expand(demo, "demo", task)]
    ablation = ["gpipe", "pipedream", "async", "t1", "t2", "t1_t2", "pipemare"]
    assert [(cell.task, cell.method) for cell in cells] == [
        *(("digits", method) for method in ablation),
        *(("numerals", method) for method in ("gpipe", "async", "pipemare")),
    ]
    assert {cell.seed for cell in cells} == {0}


def test_wrong_arguments_are_told(tmp_path: Path, capsys) -> None:
    for arguments, told in {
        ("--seeds", "0"): "argument --seeds: 0: it must be a whole number from 1 to 10000",
        ("--jobs", "0"): "argument --jobs: 0: it must be a whole number from 1",
        ("--tasks", "digit"): 'it has digits, numerals there; did you mean "digits"',
        ("--set", "epoch=1"): 'did you mean "epochs"',
    }.items():
        assert cli.main(["demo", "--runs", str(tmp_path), *arguments]) == 2
        assert told in capsys.readouterr().err


def test_it_trains_compares_draws_names_failures_and_is_a_no_op_the_second_time(monkeypatch, tmp_path, capsys) -> None:
    monkeypatch.setattr(study_file, "load", lambda name: study("async", "gpipe", "pipemare"))
    monkeypatch.setenv("OMP_NUM_THREADS", "4")  # two trainings side by side take one thread each all the same
    root = tmp_path / "it's = the runs?"
    root.mkdir()
    (broken,) = plan(expand(study("async"), "demo", "digits", extra=SHORT), root)
    assert broken.run is not None
    broken.run.path.mkdir()
    (broken.run.path / "checkpoints").write_text("in the way")
    words = ["demo", "--runs", str(root), "--tasks", "digits", *(word for one in SHORT for word in ("--set", one))]
    assert cli.main(words) == 1
    first = capsys.readouterr().out
    (line,) = (line for line in first.splitlines() if line.startswith("FAILED"))
    assert line.startswith("FAILED digits async, seed 0: cannot write the run folder")

    runs = [Run(path) for path in root.glob("digits*") if path != broken.run.path]
    results = {run.config["method"]["label"]: run.result for run in runs}
    assert set(results) == {"gpipe", "t1+t2+t3"}
    assert {run.meta["threads"] for run in runs} == {1}
    assert all("finished" in (run.path / "train.log").read_text() for run in runs)
    for label, result in results.items():
        assert result is not None and result["outcome"] == "finished" and result["step"] == 22
        (line,) = (line for line in first.splitlines() if line.startswith(f"{label} "))
        assert f"{result['last']:.1f}" in line
    with open(root / "demo" / "digits_over_epochs.csv", newline="") as file:
        drawn = {row["method"]: float(row["mean"]) for row in csv.DictReader(file) if row["epoch"] == "1"}
    assert drawn == {label: pytest.approx(result["last"]) for label, result in results.items() if result}
    assert (root / "demo" / "digits_over_epochs.png").stat().st_size > 1000

    from mlflow.tracking import MlflowClient

    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("pipemare").experiment_id
    tracked = client.search_runs([experiment])
    assert {run.data.tags["method"]: run.data.metrics["test/accuracy"] for run in tracked} == {
        label: result["last"] for label, result in results.items() if result
    }
    assert f"--backend-store-uri {uri} --host" in first
    assert f"http://127.0.0.1:5000/#/experiments/{experiment}/runs?" in first

    monkeypatch.setattr(study_file, "load", lambda name: study("gpipe", "pipemare"))
    began = [(run.path / "result.json").stat().st_mtime_ns for run in runs]
    assert cli.main(words) == 0
    again = capsys.readouterr().out
    assert "2 cells: 2 done" in again and "t1+t2+t3" in again
    assert began == [(run.path / "result.json").stat().st_mtime_ns for run in runs]
