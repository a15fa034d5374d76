"""What a user sees of a run: a bar on a terminal, plain lines elsewhere, messages that break neither.

The run's log gets every message and every evaluation's line, whatever is shown.
"""

from __future__ import annotations

import shutil
import sys
import time
from typing import Any, TextIO

from pipemare_exp import metrics
from pipemare_exp.experiment.training.log import RunLog
from pipemare_exp.experiment.training.memory import peak_in_words


class Progress:
    """Shows loss, metric, rate and time left on `out`.

    `mode`: bar, plain (a line per evaluation), none (messages only), or auto (a bar where `out` is a
    terminal).
    """

    def __init__(self, title: str, total: int, mode: str = "auto", out: TextIO | None = None):
        self.title, self.total, self.out = title, total, out or sys.stdout
        self.mode = ("bar" if self.out.isatty() else "plain") if mode == "auto" else mode
        self.log: RunLog | None = None
        self._bar: Any = None
        self._values: dict[str, str] = {}
        self._began, self._first = time.monotonic(), 0

    def start(self, step: int) -> None:
        """Begin to count at `step`."""
        self._began, self._first = time.monotonic(), step
        if self.mode == "bar":
            from tqdm import tqdm  # only a bar needs it

            self._bar = tqdm(
                total=self.total,
                initial=step,
                desc=self.title,
                file=self.out,
                unit="step",
                ncols=shutil.get_terminal_size().columns,  # 80 where the terminal does not say
                leave=False,
            )

    def step(self) -> None:
        """One more step is done."""
        if self._bar is not None:
            self._bar.update(1)

    def row(self, row: dict[str, Any], metric: str) -> None:
        """A row of metrics.jsonl."""
        if row["kind"] == "train":
            self._values |= {"loss": f"{row['loss']:.4g}", "rate": f"{row['rate']:.3g}"}
        elif row["kind"] == "eval":
            self._values[metric] = metrics.of(metric).shown(row[metric])
            self._values["peak memory"] = peak_in_words()
            self._note(self._line(row, metric), shown=self.mode == "plain")
        if self._bar is not None:
            self._bar.set_postfix(self._values, refresh=False)

    def say(self, text: str) -> None:
        """A message, whatever the mode."""
        self._note(text, shown=True)

    def _note(self, text: str, shown: bool) -> None:
        if self.log is not None:
            self.log.say(text)
        if not shown:
            return
        if self._bar is not None:
            self._bar.write(text, file=self.out)
        else:
            print(text, file=self.out, flush=True)

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _line(self, row: dict[str, Any], metric: str) -> str:
        done, step = time.monotonic() - self._began, row["step"]
        left = done / max(step - self._first, 1) * (self.total - step)
        values = self._values | {metric: f"{row['split']} {metric} {self._values[metric]}"}
        words = [value if key == metric else f"{key} {value}" for key, value in values.items()]
        return "  ".join([f"epoch {row['epoch']}  step {step}/{self.total}", *words, f"left {_clock(left)}"])


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
