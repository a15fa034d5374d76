"""A run's curves as TensorBoard's event files, in RUN/tensorboard.

The files are written anew from metrics.jsonl whenever a session begins: a row that a resumed run trains again stands
in them once, and what a crash has torn is mended.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pipemare_exp.errors import UserError
from pipemare_exp.experiment.tracking.scalars import final_of, metrics_of

FOLDER = "tensorboard"
FLUSH = 10  # seconds until a row can be seen on the page


def check_installed() -> None:
    """Raises UserError where the package is missing: an optional one."""
    if find_spec("tensorboard") is None:
        raise UserError(
            "tracking=tensorboard needs the package tensorboard; pip install tensorboard, or take tracking=mlflow or "
            "tracking=none"
        )


class TensorBoard:
    """Writes one live run's event files, with the scalars that MLflow would get. Either method may raise."""

    def __init__(self, run: Any) -> None:
        from torch.utils.tensorboard import SummaryWriter

        folder = Path(run.path) / FOLDER
        shutil.rmtree(folder, ignore_errors=True)
        self._writer = SummaryWriter(str(folder), flush_secs=FLUSH)
        config = (Path(run.path) / "config.yaml").read_text(encoding="utf-8")
        self._writer.add_text("config", "".join(f"    {line}\n" for line in config.splitlines()))  # as Markdown's code
        self.log_rows(run.metrics())

    def log_rows(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Hand over rows of metrics.jsonl; a thread of the writer's own stores them."""
        for row in rows:
            for name, value in metrics_of(row).items():
                self._writer.add_scalar(name, value, int(row["step"]), walltime=row.get("time") or time.time())

    def finish(self, result: Mapping[str, Any] | None = None) -> None:
        """Store best, last and final test at the last step, and close the file."""
        for name, value in final_of(result or {}).items():
            self._writer.add_scalar(name, value, int((result or {}).get("step") or 0))
        self._writer.close()
