"""Which MLflow entries mirror a run directory, and how are they written once only, by one process at a time?

`metrics.jsonl` rows become metrics whose step is the optimizer step, the resolved configuration becomes
flattened params, the run's files become artifacts. One MLflow run per run directory: its id is kept in
RUN/mlflow.json by the store's address, and by the id a store is known again that was moved. So a resumed training
continues its MLflow run, and rows that the store already has are never written twice.

Nothing here is imported before a run is tracked; every function may raise what MLflow raises.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from pipemare_exp.experiment.config.flat import flatten
from pipemare_exp.experiment.config.validate import check_experiment
from pipemare_exp.experiment.runs.credentials import hide
from pipemare_exp.experiment.runs.reading import Damaged, check_object, read_json
from pipemare_exp.experiment.runs.writing import write_json
from pipemare_exp.experiment.tracking import artifact_place
from pipemare_exp.experiment.tracking.scalars import final_of, metrics_of

ARTIFACTS = ("config.yaml", "overrides.json", "meta.json", "metrics.jsonl", "result.json")
PARAM_LENGTH = 500  # the smallest limit of any MLflow server; this version's own is 6,000
SHORTENED = " ... [shortened; whole in config.yaml]"
PARAMS_IN_A_BATCH, METRICS_IN_A_BATCH = 100, 1000  # MLflow's limits
LOCK_WAITS = (0.2, 0.5, 1.0, 2.0, 4.0)  # seconds before each new try where SQLite says that it is locked
CREATION = 60.0  # seconds that a process waits for others that create or open the store
COLUMNS = [f"tags.`{name}`" for name in ("task", "method", "scale", "seed", "metric", "outcome")]
COLUMNS += [f"metrics.`{name}`" for name in ("best", "last")]
VIEW = "pipemare"
EXPERIMENT_TAGS = {
    # Says that an experiment is no chat program's. MLflow 3.17's own page asks its address instead, see `page`.
    "mlflow.experimentKind": "custom_model_development",
    # What the page keeps for a view of the table of runs that was saved in it, here under the id VIEW.
    f"mlflow.sharedViewState.{VIEW}": json.dumps({
        "name": "methods compared", "createdAt": 1767225600000, "state": json.dumps({"selectedColumns": COLUMNS})
    }),
}  # fmt: skip
STATUS = {"finished": "FINISHED", "diverged": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}


def params_of(config: Mapping[str, Any]) -> dict[str, str]:
    """The flattened configuration, each value short enough for MLflow (its whole is in config.yaml)."""
    return {
        key: text if len(text) <= PARAM_LENGTH else text[: PARAM_LENGTH - len(SHORTENED)] + SHORTENED
        for key, text in flatten(config).items()
    }


class Mirror:
    """One MLflow run that mirrors one run directory. Every method may raise."""

    def __init__(self, run: Any, uri: str, experiment: str):
        self.run, self.uri = run, uri
        self.progress = time.monotonic()
        """When the store last did what it was asked for."""
        check_file(uri)
        with creation_lock(uri):  # two processes must not create the tables or the experiment at once
            self.client = self._store(lambda: MlflowClient(tracking_uri=uri))
            experiment_id = self._store(lambda: self._experiment(experiment))
        self._record = Path(run.path) / "mlflow.json"
        self.run_id = self._known_run() or self._new_run(experiment_id)
        self._last_step: dict[str, int] = {}

    def _store(self, call: Callable[[], Any]) -> Any:
        found = _retry(call)
        self.progress = time.monotonic()
        return found

    def log_backlog(self) -> None:
        """Store the params and rows of the directory that the store lacks, and say that the run runs."""
        known = self._store(lambda: self.client.get_run(self.run_id)).data.params
        missing = [Param(k, v) for k, v in params_of(self.run.config).items() if k not in known]  # params never change
        for start in range(0, len(missing), PARAMS_IN_A_BATCH):
            batch = missing[start : start + PARAMS_IN_A_BATCH]
            self._store(partial(self.client.log_batch, self.run_id, params=batch))
        self._set_tags(None)
        self._store(lambda: self.client.update_run(self.run_id, status="RUNNING"))
        self.log_rows(self.run.metrics())

    def log_rows(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Store rows; those at steps that the store has are passed over (a resumed run repeats them exactly).

        A row's time is its `time` (seconds since 1970), or the run's start + its `seconds`.
        """
        started = _seconds_since_1970(self.run.meta.get("created"))
        metrics = []
        for row in rows:
            step = int(row.get("step", 0))
            when = row.get("time") or started + float(row.get("seconds") or 0)
            for key, value in metrics_of(row).items():
                if step > self._stored_up_to(key):
                    self._last_step[key] = step
                    metrics.append(Metric(key, value, int(1000 * when), step))
        for start in range(0, len(metrics), METRICS_IN_A_BATCH):
            batch = metrics[start : start + METRICS_IN_A_BATCH]
            self._store(partial(self.client.log_batch, self.run_id, metrics=batch))

    def finish(self, result: Mapping[str, Any] | None) -> None:
        """Store the outcome, best and last metric, final test and the run's files."""
        result = result or self.run.result or {"outcome": self.run.outcome}
        step = int(result.get("step") or 0)
        ended = int(1000 * _seconds_since_1970(self.run.status.get("updated")))
        final = final_of(result).items()
        new = [Metric(key, value, ended, step) for key, value in final if step > self._stored_up_to(key)]
        self._store(lambda: self.client.log_batch(self.run_id, metrics=new))
        self._set_tags(result)
        for name in ARTIFACTS:
            if (Path(self.run.path) / name).is_file():
                self.client.log_artifact(self.run_id, str(Path(self.run.path) / name))
        status = STATUS.get(str(result.get("outcome")), "FAILED")
        self._store(lambda: self.client.set_terminated(self.run_id, status, ended))

    def _set_tags(self, result: Mapping[str, Any] | None) -> None:
        config, meta, found = self.run.config, self.run.meta, result or {}
        tags = {
            "outcome": found.get("outcome", "running"),
            "method": (config.get("method") or {}).get("label"),
            "task": (config.get("task") or {}).get("name"),
            "scale": config.get("scale"),
            "seed": config.get("seed"),
            "metric": meta.get("metric"),
            "config_hash": found.get("config_hash") or meta.get("config_hash"),
            "commit": meta.get("commit"),
            "dirty": meta.get("dirty"),
            "directory": str(Path(self.run.path).resolve()),
            "command": meta.get("command"),
            "mlflow.source.name": "pipemare train",  # the page shows what follows the last slash
            "mlflow.source.git.commit": meta.get("commit"),
        }
        notes = (meta.get("notes") or {}) | (found.get("notes") or {})
        tags |= {f"note.{key}": value for key, value in notes.items()}
        pairs = [RunTag(key, str(value)) for key, value in tags.items() if value is not None]
        self._store(lambda: self.client.log_batch(self.run_id, tags=pairs))

    def _experiment(self, name: str) -> str:
        """The MLflow experiment's id; made, with its artifacts beside the store, or restored as needed."""
        check_experiment(name)
        store = sqlite_file(self.uri)
        found = self.client.get_experiment_by_name(name)
        if found is None:
            place = None if store is None else artifact_place.beside(store, name).as_uri()
            return self.client.create_experiment(name, artifact_location=place, tags=EXPERIMENT_TAGS)
        if store is not None:
            artifact_place.follow(store, name, found.experiment_id, found.artifact_location)
        if found.lifecycle_stage == "deleted":
            self.client.restore_experiment(found.experiment_id)
        for key, value in EXPERIMENT_TAGS.items():
            if found.tags.get(key) != value:
                self.client.set_experiment_tag(found.experiment_id, key, value)
        return found.experiment_id

    def _known_run(self) -> str | None:
        """The id under which this store knows the run directory, if it still does.

        An id is MLflow's own random one: where a store has it, it is this run's, whatever the store's address was then.
        """
        ids = self._ids()
        for run_id in dict.fromkeys([ids.get(hide(self.uri)), *ids.values()]):
            if run_id is not None and self._has(run_id):
                self._remember(run_id)
                return run_id
        return None

    def _has(self, run_id: str) -> bool:
        try:
            found = self._store(lambda: self.client.get_run(run_id))
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return False  # another store, or it was deleted since: mirror anew
        # A folder that was copied under another name is another run, and so is one that names somebody else's id.
        name = Path(found.data.tags.get("directory", found.info.run_name)).name
        return found.info.lifecycle_stage == "active" and name == Path(self.run.path).name

    def _new_run(self, experiment_id: str) -> str:
        start = int(1000 * _seconds_since_1970(self.run.meta.get("created")))
        name = Path(self.run.path).name
        made = self._store(lambda: self.client.create_run(experiment_id, start_time=start, run_name=name))
        self._remember(made.info.run_id)
        return made.info.run_id

    def _remember(self, run_id: str) -> None:
        ids = self._ids()
        if ids.get(hide(self.uri)) != run_id:
            write_json(self._record, ids | {hide(self.uri): run_id})

    def _ids(self) -> dict[str, str]:
        try:
            return read_json(self._record, _check_ids) or {}
        except Damaged:  # torn by a crash: start a new MLflow run
            return {}

    def _stored_up_to(self, key: str) -> int:
        """The last step that the store has of a metric (-1: none); asked once, then known."""
        if key not in self._last_step:
            history = self._store(lambda: self.client.get_metric_history(self.run_id, key))
            self._last_step[key] = max((metric.step for metric in history), default=-1)
        return self._last_step[key]


def _check_ids(value: Any) -> str | None:
    texts = check_object(value) is None and all(isinstance(one, str) for one in value.values())
    return None if texts else "it holds no ids by address"


def page(uri: str, experiment: str) -> str:
    """Where MLflow's page shows an experiment's table of runs, with COLUMNS: what follows its address and a #.

    The page asks the address whether it is to show model training or chat programs (its default), and which saved
    view. Without the experiment: the list of them.
    """
    store = sqlite_file(uri)
    known = store is None or store.is_file()  # else the client would make one
    check_file(uri)
    found = MlflowClient(tracking_uri=uri).get_experiment_by_name(experiment) if known else None
    if found is None:
        return "/experiments?workflowType=machine_learning"
    return f"/experiments/{found.experiment_id}/runs?workflowType=machine_learning&viewStateShareKey={VIEW}"


def sqlite_file(uri: str) -> Path | None:
    """The file of a SQLite store's URI; None for a server or another data base."""
    if not uri.startswith("sqlite:///"):
        return None
    return Path(unquote(uri.removeprefix("sqlite:///").partition("?")[0])).resolve()


def check_file(uri: str) -> None:
    """Raise at once what is wrong with a SQLite store's file; MLflow would try it again for over a minute."""
    store = sqlite_file(uri)
    if store is None or not store.exists():
        return
    if not store.is_file():
        raise IsADirectoryError(f"{store} is no file, as a SQLite store is; move it away, or give another tracking.uri")
    address = f"file:{quote(str(store))}?mode=ro"
    _retry(lambda: _read_version(address))


def _read_version(address: str) -> None:
    with contextlib.closing(sqlite3.connect(address, uri=True, timeout=1.0)) as store:
        store.execute("PRAGMA schema_version").fetchone()


@contextlib.contextmanager
def creation_lock(uri: str) -> Iterator[None]:
    """Held by one process at a time while it creates or opens the SQLite store; nothing for a server.

    Raises TimeoutError where another process has held it for CREATION seconds.
    """
    store = sqlite_file(uri)
    if store is None:
        yield
        return
    store.parent.mkdir(parents=True, exist_ok=True)
    with store.with_name(store.name + ".lock").open("w", encoding="utf-8") as handle:
        end = time.monotonic() + CREATION
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # given back when the file is closed
                break
            except BlockingIOError as error:
                if time.monotonic() > end:
                    raise TimeoutError(f"another process has been opening {store} for {CREATION:.0f} s") from error
                time.sleep(0.1)
        yield


def _retry(call: Callable[[], Any]) -> Any:
    """The call's value; tried again a few times while another process holds SQLite's write lock."""
    for wait in LOCK_WAITS:
        try:
            return call()
        except Exception as error:
            if "database is locked" not in str(error):
                raise
            time.sleep(wait)
    return call()


def _seconds_since_1970(when: Any) -> float:
    """An ISO date or a number of seconds, as the run's files have them; now, where there is none."""
    if isinstance(when, int | float):
        return float(when)
    with contextlib.suppress(ValueError, TypeError):
        return datetime.fromisoformat(when).timestamp()
    return time.time()
