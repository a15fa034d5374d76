"""The training loop around a real pipeline: it decides on a checkpoint a step ahead, while it can still be gathered."""

from __future__ import annotations

import time

from pipemare_exp.experiment.runtime import rank_files
from pipemare_exp.experiment.runtime.engine import RuntimeEngine
from pipemare_exp.experiment.training.loop import Loop


class RuntimeLoop(Loop):
    """The loop's rows and decisions, around a `RuntimeEngine`."""

    engine: RuntimeEngine

    def run(self) -> bool:
        self._began = time.monotonic()
        if self.evaluated < self.step and self._evaluation_due():
            self._evaluate()
        self.engine.start(self.checkpoints.folder, self._wanted)
        runtime = self.engine.running
        while self.step < self.last:
            self._train([])
            if self._evaluation_due():
                self._evaluate()
            if self.step in runtime.planned:
                self.save()
                runtime.planned.discard(self.step)
            if runtime.stop_at == self.step < self.last:
                return False
        return True

    def _wanted(self, version: int) -> tuple[bool, bool]:
        """Whether there is to be a checkpoint at `version`, whose step begins now, and whether the run stops there."""
        if version == self.last:
            return False, False  # it is made in any case
        if self.stop():
            return True, True
        at_epoch_end = version % self._steps_per_epoch == 0
        if self.cfg.checkpoint.every_steps:
            return at_epoch_end or version % self.cfg.checkpoint.every_steps == 0, False
        gathering = self.engine.running.planned - {self.last}
        return not gathering and self.checkpoints.due(at_epoch_end), False

    def save(self) -> None:
        super().save()
        rank_files.prune(self.checkpoints.folder, 1 + self.cfg.checkpoint.keep)
