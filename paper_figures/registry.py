"""The list of all figures and tables: what each is made from, and whether what it needs is there."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from paper_figures.runs import select
from paper_figures.runs.axes_of_studies import AXES
from pipemare_exp import methods
from pipemare_exp.analysis.row import RunRow
from pipemare_exp.data import TASKS
from pipemare_exp.errors import UserError, suggest
from pipemare_exp.experiment.config.folder import first_scale
from pipemare_exp.experiment.config.schema import SCALES


@dataclass(frozen=True)
class Entry:
    """One figure or table. `kind`: theory, costs (both formulas) or runs (of `task`, made by `study`).

    `only`: the methods whose runs belong on it; () for all but those that have figures of their own.
    """

    name: str
    module: str
    kind: str
    task: str = ""
    study: str = ""
    axis: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    needs_data: bool = False

    @property
    def family(self) -> str:
        """The name without its task: `ablation` of `ablation_digits`."""
        return self.name.removesuffix(f"_{self.task}") if self.task else self.name

    def what(self) -> str:
        """The first sentence of the module's docstring."""
        return (self._module().__doc__ or "").strip().splitlines()[0]

    def _module(self) -> Any:
        return importlib.import_module(f"paper_figures.{self.kind}.{self.module}")

    def sweep(self, scale: str | None) -> str:
        """The command that makes the runs."""
        return f"pipemare sweep {self.study}_{self.task} scale={scale or first_scale(self.task)}"

    def chosen(self, rows: Sequence[RunRow], scale: str) -> tuple[list[RunRow], list[str]]:
        """The runs that this entry draws at a scale, and what is missing."""
        module = self._module()
        mine = [row for row in select.ended(rows, self.task, scale) if self._shows(row.method)]
        return select.choose(mine, lambda group: module.missing(group, **self.options), self.axis)

    def _shows(self, method: str) -> bool:
        """Whether runs of this method belong on the figure; some methods have figures of their own."""
        if self.only:
            return method in self.only
        kind = methods.of_label(method)
        own = kind.study if kind else None
        if self.study in {one.study for one in methods.METHODS.values()}:
            return own == self.study or methods.synchronous(method)
        return own is None

    def scales(self, rows: Sequence[RunRow]) -> list[str]:
        """The scales at which nothing is missing."""
        return [scale for scale in SCALES if not self.chosen(rows, scale)[1]]

    def nearest_scale(self, rows: Sequence[RunRow], scale: str | None = None) -> str:
        """The scale that was asked for, else that of the task's runs, else the one that a task begins with."""
        if scale:
            return scale
        there = {row.scale for row in rows if row.task == self.task}
        return next((one for one in SCALES if one in there), first_scale(self.task))

    def make(
        self, out: Path, rows: Sequence[RunRow] = (), scale: str = "", data_root: Path | None = None
    ) -> list[Path]:
        """Draws it: `out`/name.* or, from runs, `out`/name_scale.*; missing runs are a `UserError`.

        `data_root`: the folder of prepared data, for what is drawn from a data set (`needs_data`).
        """
        if self.kind != "runs":
            options = {"data_root": data_root} if self.needs_data else {}
            return self._module().draw(out / self.name, **options)
        mine, lacks = self.chosen(rows, scale)
        if lacks:
            raise UserError(
                f"{self.name}: no runs at scale {scale} of {', '.join(lacks)}; make them with `{self.sweep(scale)}`"
            )
        return self._module().draw(mine, self.task, out / f"{self.name}_{scale}", **self.options)


class Family(NamedTuple):
    """A figure or table that every task has: its module in `runs`, the study that makes the runs, and its axis.

    `only`: as in `Entry`.
    """

    name: str
    module: str
    study: str
    axis: str | None = None
    only: tuple[str, ...] = ()

    def entry(self, task: str) -> Entry:
        """The figure of one task."""
        keys, options = (AXES[self.axis].keys, {"axis": self.axis}) if self.axis else ((), {})
        return Entry(f"{self.name}_{task}", self.module, "runs", task, self.study, keys, self.only, options)


FAMILIES = (
    Family("metric_over_epochs", "metric_over_epochs", "end_to_end", only=select.END_TO_END),
    Family("metric_over_time", "metric_over_time", "end_to_end", only=select.END_TO_END),
    Family("table2", "table2", "end_to_end"),
    Family("ablation", "ablation", "ablation"),
    Family("table3", "table3", "ablation"),
    Family("sensitivity_d", "sensitivity", "sensitivity_d", "decay"),
    Family("sensitivity_k", "sensitivity", "sensitivity_k", "k"),
    Family("sensitivity_warmup", "sensitivity", "sensitivity_warmup", "warmup"),
    Family("sensitivity_rate", "sensitivity", "sensitivity_rate", "rate"),
    Family("stages", "sensitivity", "stages", "stages"),
    Family("recompute", "recompute", "recompute", "segment"),
    Family("hogwild", "hogwild", "hogwild", "delay_scale"),
    Family("hogwild_table", "hogwild_table", "hogwild", "delay_scale"),
    Family("health", "health", "end_to_end", only=select.END_TO_END),
    Family("staleness", "staleness", "staleness"),
    Family("t2_error", "t2_error", "staleness"),
)
ENTRIES: tuple[Entry, ...] = (
    *(
        Entry(name, name.removeprefix("theory_"), "theory", needs_data=name == "theory_heatmap")
        for name in (
            "theory_divergence",
            "theory_heatmap",
            "theory_discrepancy",
            "theory_t2_roots",
            "theory_t2_table",
            "theory_t2_range",
            "theory_momentum",
        )
    ),
    *(
        Entry(name, name, "costs")
        for name in ("schedules", "utilization", "memory", "table1", "activations", "recompute_memory", "frontier")
    ),
    *(family.entry(task) for family in FAMILIES for task in TASKS),
)


def find(names: Sequence[str]) -> list[Entry]:
    """The entries of these names; a family (`ablation`) stands for all of its tasks. UserError if unknown."""
    found: list[Entry] = []
    known = {entry.name for entry in ENTRIES} | {entry.family for entry in ENTRIES}
    for name in names:
        if name not in known:
            raise UserError(f'no figure or table "{name}"{suggest(name, known)}; `pipemare figures --list` names them')
        found += [entry for entry in ENTRIES if name in (entry.name, entry.family) and entry not in found]
    return found
