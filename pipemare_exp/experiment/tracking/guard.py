"""How is a run kept safe from whatever its tracker does?"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from pipemare_exp.experiment.config.schema import Config
from pipemare_exp.experiment.runs.credentials import hide
from pipemare_exp.experiment.runs.folder import Run

log = logging.getLogger(__name__)


class GuardedTracker:
    """A tracker that cannot break the run: its first error is a warning, after which it is left alone."""

    def __init__(self, cfg: Config, run: Run):
        self._tracker: Any = None
        if cfg.tracking.name == "none":
            return
        self._try(lambda: self._open(cfg, run))

    def _open(self, cfg: Config, run: Run) -> None:
        from pipemare_exp.experiment.tracking import tracker as tracking

        self._tracker = tracking.open(cfg, run)

    def log_rows(self, rows: list[dict[str, Any]]) -> None:
        if self._tracker is not None:
            self._try(lambda: self._tracker.log_rows(rows))

    def finish(self, summary: dict[str, Any]) -> None:
        if self._tracker is not None:
            self._try(lambda: self._tracker.finish(summary))

    def _try(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # a tracker may fail in any way; metrics.jsonl has everything
            self._tracker = None
            log.warning("tracking failed (%s); the run goes on, `pipemare track` mirrors it later", hide(str(error)))
