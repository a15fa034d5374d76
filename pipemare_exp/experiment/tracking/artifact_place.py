"""Where does an MLflow store in a file keep artifacts, and what when the folder that holds both was moved?

They lie in `mlartifacts/EXPERIMENT` beside the store. MLflow keeps their absolute addresses, of the experiment and of
each of its runs, so that after a move it would write to the old place.
"""

from __future__ import annotations

import logging
import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import unquote, urlparse

log = logging.getLogger(__name__)

FOLDER = "mlartifacts"


def beside(store: Path, experiment: str) -> Path:
    """The folder of an experiment's artifacts for the store in the file `store`."""
    return store.parent / FOLDER / experiment


def follow(store: Path, experiment: str, experiment_id: str, recorded: str) -> None:
    """Have artifacts written beside `store` where the address `recorded` for them is of a place that it was moved from.

    An address that is not of `FOLDER/EXPERIMENT` was chosen by somebody and stays. So does one where the artifacts
    still are, while there are none beside the store; that is said.
    """
    before, now = _path(recorded), beside(store, experiment)
    if before is None or before == now or before.parts[-2:] != now.parts[-2:]:
        return
    if before.is_dir() and not now.is_dir():
        log.warning("artifacts of the store %s are in %s, and new ones are written there", store, before)
        return
    address = now.as_uri()
    with closing(sqlite3.connect(store, timeout=1.0)) as database, database:
        database.execute(
            "UPDATE experiments SET artifact_location = ? WHERE experiment_id = ?", (address, int(experiment_id))
        )
        database.execute(
            "UPDATE runs SET artifact_uri = ? || substr(artifact_uri, ?) "
            "WHERE experiment_id = ? AND substr(artifact_uri, 1, ?) = ?",
            (address, len(recorded) + 1, int(experiment_id), len(recorded) + 1, f"{recorded}/"),
        )
    log.info("the store %s was moved: its artifacts are in %s, no longer in %s", store, now, before)


def _path(address: str) -> Path | None:
    """The folder of a `file:` address; None for a server's or another storage."""
    parts = urlparse(address)
    if parts.scheme not in ("", "file") or parts.netloc not in ("", "localhost"):
        return None
    return Path(unquote(parts.path))
