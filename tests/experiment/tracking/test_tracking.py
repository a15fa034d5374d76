"""The mirror in MLflow: what it holds, once only; and that it can neither break nor hold up a run."""

import json
import logging
import os
import shlex
import sqlite3
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

from pipemare_exp.errors import UserError
from pipemare_exp.experiment.tracking import tracker as tracking
from tests.experiment.run_folders import write_run

ROOT = Path(__file__).resolve().parents[3]


def settings(name="mlflow", uri=None):
    return SimpleNamespace(tracking=SimpleNamespace(name=name, uri=uri, experiment="pipemare"))


def stored(uri):
    """The client and the MLflow runs of a store."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    return client, client.search_runs([client.get_experiment_by_name("pipemare").experiment_id])


def points(client, run_id, key):
    return sorted((metric.step, metric.value) for metric in client.get_metric_history(run_id, key))


def python(code, **environment):
    """Runs code in a fresh interpreter that finds the package and these helpers."""
    path = str(ROOT)
    full = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **environment}
    return subprocess.run([sys.executable, "-c", code], env=full, capture_output=True, text=True, timeout=120)


def test_mirror_holds_metrics_params_tags_and_files_once(home):
    runs, uri = home
    pipeline = {"stages": 1000, "microbatches": 4, "slots": "duplex", "boundaries": list(range(1000))}
    many = {f"option_{k}": k for k in range(150)}  # more than one batch of params
    run = write_run(runs, "t1+t2", 3, (90.0, 95.0), pipeline=pipeline, extra=many, notes={"train": "a subset"})
    run_id = tracking.mirror_run(run, uri, "pipemare")
    assert tracking.mirror_run(run, uri, "pipemare") == run_id
    client, (found,) = stored(uri)
    assert found.info.run_id == run_id and found.info.run_name == run.path.name and found.info.status == "FINISHED"
    created = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC).timestamp()
    assert (found.info.start_time, found.info.end_time) == (1000 * created, 1000 * (created + 60))

    assert points(client, run_id, "test/accuracy") == [(10, 90.0), (20, 95.0)]
    assert points(client, run_id, "train/loss") == [(5, 1.0), (10, 1.0), (15, 0.5), (20, 0.5)]
    assert points(client, run_id, "epoch") == [(5, 1.0), (10, 1.0), (15, 2.0), (20, 2.0)]
    assert points(client, run_id, "best") == [(20, 95.0)]

    params = found.data.params
    assert (
        params["optimizer.rate"] == "0.05" and params["method.label"] == "t1+t2" and params["extra.option_149"] == "149"
    )
    assert params["pipeline.boundaries"].startswith("[0, 1, 2,") and "shortened" in params["pipeline.boundaries"]
    tags = found.data.tags
    expected = {"outcome": "finished", "method": "t1+t2", "task": "digits", "scale": "demo", "seed": "3"}
    expected |= {"commit": "c0ffee", "note.train": "a subset"}
    assert {key: tags[key] for key in expected} == expected
    files = {artifact.path for artifact in client.list_artifacts(run_id)}
    assert files == {"config.yaml", "overrides.json", "meta.json", "metrics.jsonl", "result.json"}
    copied = client.download_artifacts(run_id, "metrics.jsonl")
    assert Path(copied).read_text() == (run.path / "metrics.jsonl").read_text()
    assert (runs.parent / "mlartifacts").is_dir()


def test_the_page_opens_as_model_training_with_the_columns_that_compare_methods(home):
    """What MLflow's page reads: the kind, and a saved view of the table of runs, in the form that the page gives it."""
    runs, uri = home
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    experiment = client.create_experiment("pipemare")  # by hand, or by an earlier version: without tags
    run_id = tracking.mirror_run(write_run(runs), uri, "pipemare")
    tags = client.get_experiment(experiment).tags
    assert tags["mlflow.experimentKind"] == "custom_model_development"
    view = json.loads(tags["mlflow.sharedViewState.pipemare"])
    assert isinstance(view["name"], str) and isinstance(view["createdAt"], int)
    found = client.get_run(run_id).data
    shown = {}
    for column in json.loads(view["state"])["selectedColumns"]:
        kind, name = column.rstrip("`").split(".`")
        shown[name] = getattr(found, kind)[name]
    assert shown == {
        **{"task": "digits", "method": "gpipe", "scale": "demo", "seed": "0", "metric": "accuracy"},
        **{"outcome": "finished", "best": 95.0, "last": 95.0},
    }
    assert tracking.mirror_run(write_run(runs, seed=1), uri, "pipemare") != run_id
    assert client.get_experiment(experiment).tags == tags


@pytest.mark.parametrize("name", ["it's = all", "100%41 what?"])
def test_a_store_in_a_folder_of_any_name(name, tmp_path):
    runs = tmp_path / name / "runs"
    runs.mkdir(parents=True)
    uri = tracking.default_uri(runs)
    run_id = tracking.mirror_run(write_run(runs), uri, "pipemare")
    assert (runs.parent / "mlflow.db").is_file()
    assert (runs.parent / "mlartifacts" / "pipemare" / run_id / "artifacts" / "config.yaml").is_file()
    command = tracking.how_to_see(uri, "pipemare").splitlines()[1]
    assert shlex.split(command)[1:4] == ["server", "--backend-store-uri", uri]


def test_where_the_page_is_is_told_without_a_store_too(tmp_path):
    text = tracking.how_to_see(tracking.default_uri(tmp_path / "runs"), "pipemare")
    assert text.endswith("http://127.0.0.1:5000/#/experiments?workflowType=machine_learning")
    assert not list(tmp_path.iterdir())


def test_a_resumed_run_continues_its_mlflow_run_without_repeated_points(home):
    runs, uri = home
    run = write_run(runs, "gpipe", 0, (90.0,), outcome="running")
    before = tracking.open(settings(), run)
    lost = {"kind": "train", "step": 15, "epoch": 2, "loss": 0.5, "rate": 0.1, "seconds": 2}
    before.log_rows([lost])  # mirrored, then the process is killed before its next checkpoint: no finish()
    for _ in range(200):
        time.sleep(0.05)
        if Path(uri.removeprefix("sqlite:///")).is_file() and (run.path / "mlflow.json").is_file():
            client, (found,) = stored(uri)
            if len(points(client, found.info.run_id, "train/loss")) == 3:
                break
    assert found.info.status == "RUNNING"

    again = tracking.open(settings(), run)  # the run repeats step 15 and goes on
    again.log_rows([lost, {**lost, "step": 20, "loss": 0.25}])
    again.finish({"outcome": "diverged", "step": 22, "best": 90.0, "last": None, "config_hash": "ff"})
    client, (after,) = stored(uri)
    assert after.info.run_id == found.info.run_id and after.info.status == "FINISHED"
    assert points(client, after.info.run_id, "train/loss") == [(5, 1.0), (10, 1.0), (15, 0.5), (20, 0.25)]
    assert after.data.tags["outcome"] == "diverged" and "last" not in after.data.metrics


def test_a_run_deleted_from_the_store_is_mirrored_anew(home):
    runs, uri = home
    run = write_run(runs)
    first = tracking.mirror_run(run, uri, "pipemare")
    stored(uri)[0].delete_run(first)
    second = tracking.mirror_run(run, uri, "pipemare")
    assert second != first
    assert json.loads((run.path / "mlflow.json").read_text()) == {uri: second}
    _, (found,) = stored(uri)
    assert found.info.run_id == second and found.data.metrics["test/accuracy"] == 95.0


@pytest.mark.parametrize("uri", ["sqlite:////dev/null/no/mlflow.db", "file:./mlruns", "nonsense://store"])
def test_a_broken_store_costs_one_warning(home, caplog, uri):
    run = write_run(home[0], outcome="running")
    with caplog.at_level(logging.WARNING):
        tracker = tracking.open(settings(uri=uri), run)
        tracker.log_rows(run.metrics())
        tracker.finish({"outcome": "finished", "step": 20})
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 1 and lines[0].count("\n") == 0 and "the run goes on" in lines[0]


def test_a_slow_store_holds_nothing_up(monkeypatch, caplog):
    monkeypatch.setattr(tracking, "FINISH_TIMEOUT", 0.3)
    release, answered = threading.Event(), threading.Event()

    def open_store():
        release.wait(60)
        answered.set()

    tracker = tracking.Tracker(open_store)
    for step in range(1000):
        tracker.log_rows([{"kind": "train", "step": step, "loss": 1.0}])
    assert not answered.is_set()
    with caplog.at_level(logging.WARNING):
        tracker.finish({"outcome": "finished"})
    assert not answered.is_set() and "did not answer" in caplog.text
    release.set()


def test_rows_wait_while_another_process_writes(home):
    runs, uri = home
    run = write_run(runs, outcome="running")
    tracking.mirror_run(run, uri, "pipemare")
    other = sqlite3.connect(uri.removeprefix("sqlite:///"), isolation_level=None, check_same_thread=False)
    other.execute("BEGIN EXCLUSIVE")
    threading.Timer(1.0, lambda: other.execute("COMMIT")).start()
    tracker = tracking.open(settings(), run)
    tracker.log_rows([{"kind": "train", "step": 25, "epoch": 3, "loss": 0.125, "rate": 0.1, "seconds": 3}])
    tracker.finish({"outcome": "finished", "step": 30})
    client, (found,) = stored(uri)
    assert points(client, found.info.run_id, "train/loss")[-1] == (25, 0.125)
    assert found.data.tags["outcome"] == "finished"


def test_a_store_that_stays_locked_costs_a_bounded_wait(home, monkeypatch, caplog):
    runs, uri = home
    monkeypatch.setattr(tracking, "STALL", 1.0)
    other = sqlite3.connect(uri.removeprefix("sqlite:///"), isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    tracker = tracking.open(settings(), write_run(runs, outcome="running"))
    began = time.monotonic()
    with caplog.at_level(logging.WARNING):
        tracker.finish({"outcome": "finished", "step": 20})
    assert time.monotonic() - began < 4.0
    assert "MLflow did not answer for 1 s; `pipemare track RUN` mirrors the rest" in caplog.text
    other.execute("ROLLBACK")
    tracker._thread.join(60.0)


@pytest.mark.parametrize("kind", ["folder", "text"])
def test_what_is_no_store_is_told_at_once(kind, fresh_home, caplog):
    runs, uri = fresh_home
    store = Path(uri.removeprefix("sqlite:///"))
    store.mkdir() if kind == "folder" else store.write_text("no data base " * 100)
    with caplog.at_level(logging.WARNING):
        tracker = tracking.open(settings(), write_run(runs, outcome="running"))
        tracker._thread.join(5.0)
        assert not tracker._thread.is_alive()
        tracker.finish({"outcome": "finished", "step": 20})
    assert {"folder": "is no file", "text": "file is not a database"}[kind] in caplog.text


def test_the_store_is_not_waited_for_while_another_opens_it_for_ever(home, monkeypatch):
    from pipemare_exp.experiment.tracking import mlflow_mirror

    monkeypatch.setattr(mlflow_mirror, "CREATION", 0.3)
    with (
        mlflow_mirror.creation_lock(home[1]),
        pytest.raises(TimeoutError, match=r"another process has been opening .*mlflow\.db"),
        mlflow_mirror.creation_lock(home[1]),
    ):
        pass


def test_locked_store_is_tried_again_and_other_errors_are_not(monkeypatch):
    from pipemare_exp.experiment.tracking import mlflow_mirror

    waited = []
    monkeypatch.setattr(mlflow_mirror.time, "sleep", waited.append)
    answers = iter([RuntimeError("database is locked"), RuntimeError("database is locked"), "stored"])

    def call():
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert mlflow_mirror._retry(call) == "stored"
    assert waited == list(mlflow_mirror.LOCK_WAITS[:2])
    answers = iter([RuntimeError("disk full"), "stored"])
    with pytest.raises(RuntimeError, match="disk full"):
        mlflow_mirror._retry(call)


def test_two_processes_may_create_the_store_at_once(fresh_home):
    runs, uri = fresh_home
    code = (
        "import sys; from pathlib import Path; from tests.experiment.run_folders import write_run\n"
        "from pipemare_exp.experiment.tracking import tracker as tracking\n"
        f"tracking.mirror_run(write_run(Path({str(runs)!r}), 'gpipe', int(sys.argv[1])), {uri!r}, 'pipemare')"
    )
    path = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    both = [subprocess.Popen([sys.executable, "-c", code, str(k)], env=path, stderr=subprocess.PIPE) for k in (0, 1)]
    for process in both:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors.decode()
    client, found = stored(uri)
    assert sorted(run.data.tags["seed"] for run in found) == ["0", "1"]
    assert len([one for one in client.search_experiments() if one.name == "pipemare"]) == 1


def test_tracking_none_never_imports_mlflow_and_mlflow_is_quiet_and_offline(fresh_home):
    runs, uri = fresh_home
    run = write_run(runs, outcome="running")
    code = f"""
import socket, sys
from types import SimpleNamespace
from pipemare_exp.experiment.tracking import tracker as tracking
from pipemare_exp.experiment.runs.folder import Run
cfg = SimpleNamespace(tracking=SimpleNamespace(name="none", uri=None, experiment="pipemare"))
tracker = tracking.open(cfg, Run({str(run.path)!r}))
tracker.log_rows([{{"kind": "train", "step": 1, "loss": 1.0}}])
tracker.finish(None)
assert not any(name.partition(".")[0] == "mlflow" for name in sys.modules)
asked = []
def refuse(*arguments, **more):
    asked.append(arguments)
    raise OSError("no network here")
socket.getaddrinfo = socket.socket.connect = refuse
cfg.tracking.name = "mlflow"
tracker = tracking.open(cfg, Run({str(run.path)!r}))
tracker.finish({{"outcome": "finished", "step": 20}})
assert "mlflow" in sys.modules and not asked, asked
"""
    result = python(code, PATH="/nonexistent")  # no git to be found either
    assert result.returncode == 0, result.stderr
    assert result.stdout == "" and result.stderr == ""
    assert len(stored(uri)[1]) == 1


def track(*arguments):
    import argparse

    from pipemare_exp.commands import track as command

    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.run(parser.parse_args(list(arguments)))


def test_track_command_mirrors_all_runs_and_names_those_it_cannot(home, capsys):
    runs, uri = home
    write_run(runs, "gpipe", 0)
    good = write_run(runs, "async", 0, (70.0,), outcome="diverged")
    assert track("--runs", str(runs)) == 0
    assert track(good.path.name, "--runs", str(runs)) == 0
    told = capsys.readouterr().out
    assert f"mlflow server --backend-store-uri {uri} --host 127.0.0.1" in told
    assert "http://127.0.0.1:5000/#/experiments/1/runs?workflowType=machine_learning&viewStateShareKey=pipemare" in told
    torn = write_run(runs, "gpipe", 7, name="torn")
    (torn.path / "result.json").write_text("{")
    with pytest.raises(UserError, match="1 of 3 runs could not be tracked: torn: .*not JSON"):
        track("--runs", str(runs))
    _, found = stored(uri)
    assert sorted(run.data.tags["outcome"] for run in found) == ["diverged", "finished"]
    with pytest.raises(UserError, match="no runs under"):
        track("--runs", str(runs / "none"))
