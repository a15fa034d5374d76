"""Folders of runs with the MLflow store that lies beside them by default."""

from __future__ import annotations

import shutil

import pytest

from pipemare_exp.experiment.tracking import tracker as tracking


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory):
    """A store with its tables, made once: that takes MLflow two seconds."""
    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    tracking.import_mlflow()
    from mlflow.tracking import MlflowClient

    MlflowClient(tracking_uri=f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def fresh_home(tmp_path):
    """A folder of runs and the URI of the store that lies beside it by default, which does not exist yet."""
    runs = tmp_path / "results" / "runs"
    runs.mkdir(parents=True)
    return runs, f"sqlite:///{tmp_path / 'results' / 'mlflow.db'}"


@pytest.fixture
def home(fresh_home, empty_store):
    """The same with an empty store."""
    shutil.copy(empty_store, fresh_home[0].parent / "mlflow.db")
    return fresh_home
