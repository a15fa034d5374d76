"""Where MLflow writes: beside a store that was moved, never outside of it, never where a run's folder says."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import pytest

from pipemare_exp import cli
from pipemare_exp.errors import UserError
from pipemare_exp.experiment.config.load import load
from pipemare_exp.experiment.runs.folder import Run
from pipemare_exp.experiment.tracking import artifact_place
from pipemare_exp.experiment.tracking import tracker as tracking
from tests.experiment.run_folders import write_run


def stored(uri: str):
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    return client, client.search_runs([client.get_experiment_by_name("pipemare").experiment_id])


def _utils():
    from mlflow.tracking._tracking_service import utils

    return utils


def mirror(runs: Path, seed: int = 0, run: Run | None = None) -> str:
    return tracking.mirror_run(run or write_run(runs, "gpipe", seed), tracking.default_uri(runs), "pipemare")


@pytest.mark.parametrize("move", [shutil.move, shutil.copytree])
def test_a_moved_or_copied_folder_is_gone_on_with_where_it_is_now(move, home, tmp_path: Path) -> None:
    runs, _ = home
    first = mirror(runs)
    before = runs.parent
    there = tmp_path / "it's new"
    move(before, there)
    _utils()._artifact_repos_cache.clear()  # within one process MLflow remembers a run's place; the move ends that
    kept = {path.relative_to(tmp_path) for path in before.rglob("*")}

    (old,) = [Run(path) for path in (there / "runs").iterdir()]
    assert mirror(there / "runs", run=old) == first  # not a second time
    second = mirror(there / "runs", seed=1)
    assert {path.relative_to(tmp_path) for path in before.rglob("*")} == kept  # nothing is made or written there anew
    for run_id in (first, second):
        assert (there / "mlartifacts" / "pipemare" / run_id / "artifacts" / "config.yaml").is_file()
    client, found = stored(tracking.default_uri(there / "runs"))
    assert {one.info.run_id for one in found} == {first, second}
    place = (there / "mlartifacts" / "pipemare").as_uri()
    assert all(one.info.artifact_uri.startswith(f"{place}/") for one in found)
    assert client.get_experiment_by_name("pipemare").artifact_location == place
    assert Path(client.download_artifacts(first, "config.yaml")).is_file()
    assert json.loads((old.path / "mlflow.json").read_text())[tracking.default_uri(there / "runs")] == first


def test_artifacts_that_stayed_behind_are_said_and_used(home, tmp_path: Path, caplog) -> None:
    runs, _ = home
    mirror(runs)
    there = tmp_path / "new"
    there.mkdir()
    shutil.move(runs.parent / "mlflow.db", there / "mlflow.db")
    shutil.move(runs, there / "runs")
    with caplog.at_level(logging.WARNING, logger="pipemare_exp"):
        second = mirror(there / "runs", seed=1)
    assert f"are in {runs.parent / 'mlartifacts' / 'pipemare'}, and new ones are written there" in caplog.text
    assert (runs.parent / "mlartifacts" / "pipemare" / second).is_dir() and not (there / "mlartifacts").exists()


def test_an_address_that_somebody_chose_stays(home, tmp_path: Path) -> None:
    runs, uri = home
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    chosen = (tmp_path / "chosen").as_uri()
    client.create_experiment("pipemare", artifact_location=chosen)
    mirror(runs)
    assert client.get_experiment_by_name("pipemare").artifact_location == chosen
    for address in ("s3://bucket/mlartifacts/pipemare", "file://host/x/mlartifacts/pipemare"):
        artifact_place.follow(tmp_path / "none" / "mlflow.db", "pipemare", "1", address)  # touches no store


def test_a_copy_under_another_name_is_a_run_of_its_own(home) -> None:
    runs, uri = home
    run = write_run(runs, "gpipe", 0)
    first = mirror(runs, run=run)
    shutil.copytree(run.path, runs / "another")
    assert mirror(runs, run=Run(runs / "another")) != first
    (run.path / "mlflow.json").write_text('{"x": 3}')  # damaged: mirrored anew, and no error
    assert mirror(runs, run=run) != first
    assert len(stored(uri)[1]) == 3


EVIL = ["../../evil", "/tmp/evil", "a/b", "..", ".hidden", "a\\b", "", "x\ny", "\x1b[31m", "~root", "C:x", "é" * 101]


@pytest.mark.parametrize("name", EVIL)
def test_an_experiment_is_the_name_of_one_folder(name: str, home) -> None:
    runs, uri = home
    quoted = "'" + name.replace("\\", "\\\\") + "'"
    if name.isprintable():
        with pytest.raises(UserError, match=r"tracking\.experiment"):
            load(["task=digits", "method=gpipe", f"tracking.experiment={quoted}"])
    run = write_run(runs, tracking={"name": "mlflow", "uri": None, "experiment": name})
    with pytest.raises(UserError, match=r"tracking\.experiment="):
        tracking.mirror_run(run, uri, name)
    assert {path.name for path in runs.parent.iterdir()} <= {"runs", "mlflow.db", "mlflow.db.lock"}


@pytest.mark.parametrize("name", ["pipemare", "my runs, 2nd: no"[:12], "Ünsinn_1.0-b", "50% (try)"])
def test_other_names_serve(name: str) -> None:
    assert load(["task=digits", "method=gpipe", f"tracking.experiment='{name}'"]).tracking.experiment == name


def test_track_writes_where_the_command_says_and_not_where_a_run_says(home, tmp_path: Path, capsys) -> None:
    runs, uri = home
    foreign = f"sqlite:///{tmp_path / 'foreign' / 'mlflow.db'}"
    write_run(runs, "gpipe", 0, tracking={"name": "mlflow", "uri": foreign, "experiment": "pipemare"})
    write_run(runs, "gpipe", 1, tracking={"name": "mlflow", "uri": uri, "experiment": "pipemare"})
    assert cli.main(["track", "--runs", str(runs)]) == 2
    said = capsys.readouterr()
    assert "1 of 2 runs could not be tracked" in said.err and f"names the store {foreign}" in said.err
    assert "--uri" in said.err and not (tmp_path / "foreign").exists()
    assert len(stored(uri)[1]) == 1
    assert cli.main(["track", "--runs", str(runs), "--uri", uri]) == 0
    assert len(stored(uri)[1]) == 2 and not (tmp_path / "foreign").exists()
