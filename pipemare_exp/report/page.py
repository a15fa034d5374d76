"""One page with all tables and figures that the logged runs allow, and with what stands behind each.

The page is one HTML file: images and downloads are data URIs, there is no script, and its content security policy
forbids every request.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paper_figures.registry import Entry
from pipemare_exp.analysis import comparison, rows, words
from pipemare_exp.analysis.row import DAMAGED, RunRow
from pipemare_exp.data import TASKS
from pipemare_exp.errors import UserError
from pipemare_exp.experiment.runs import provenance
from pipemare_exp.leftovers import work_folder
from pipemare_exp.report.doubts import doubts
from pipemare_exp.report.items import Item, make


@dataclass(frozen=True)
class Missing:
    """A figure or table that cannot be made yet: why, and the command that makes what it lacks."""

    name: str
    why: str
    command: str


@dataclass(frozen=True)
class Environment:
    """Versions and a machine, and the runs made with exactly these."""

    versions: dict[str, Any]
    machine: dict[str, Any]
    runs: list[RunRow]

    @property
    def commits(self) -> list[str]:
        return sorted({row.commit or "no commit" for row in self.runs})


@dataclass(frozen=True)
class Page:
    """The page's content, as the template shows it."""

    shown_root: str
    scale: str | None
    command: str
    created: str
    maker: dict[str, Any]
    runs: list[RunRow]
    compared: list[dict[str, Any]]
    items: list[Item]
    missing: list[Missing]

    def html(self) -> str:
        """The page; well-formed as XML too."""
        from jinja2 import Environment as Templates
        from jinja2 import PackageLoader, StrictUndefined

        templates = Templates(
            loader=PackageLoader("pipemare_exp.report", "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        return templates.get_template("report.html").render(
            page=self,
            words=words,
            doubts=doubts(self.runs, self.compared),
            environments=environments(self.runs),
            comparisons=self.comparisons(),
        )

    def comparisons(self) -> list[tuple[str, list[dict[str, Any]]]]:
        """(title, rows of `comparison.compare`) for every task and scale with runs."""
        places: dict[str, list[dict[str, Any]]] = {}
        for row in self.compared:
            places.setdefault(f"{row['task']}, scale {row['scale']}", []).append(row)
        return [(f"{place}: {words.metric(group)}", group) for place, group in places.items()]

    def outcomes(self) -> str:
        """`12 finished, 2 diverged`."""
        names = [run.outcome for run in self.runs]
        known = ("finished", "diverged", "running", "interrupted", "failed", DAMAGED)
        return ", ".join(f"{names.count(name)} {name}" for name in known if name in names) or "none"


def environments(runs: Sequence[RunRow]) -> list[Environment]:
    """The runs by versions and machine, the most used first."""
    found: dict[str, list[RunRow]] = {}
    for run in runs:
        if run.outcome != DAMAGED:
            found.setdefault(json.dumps([run.versions, run.machine], sort_keys=True), []).append(run)
    groups = sorted(found.values(), key=len, reverse=True)
    return [Environment(group[0].versions, group[0].machine, group) for group in groups]


def build(
    root: Path,
    entries: Sequence[Entry],
    *,
    scale: str | None = None,
    shown_root: str = "",
    command: str = "pipemare report",
    asked: str = "",
    data_root: Path | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Page:
    """Draw what is ready of `entries` from the runs under `root` (of one `scale`, if given) and collect the rest.

    `shown_root` and `command` are what the page says of where the runs are and what made it; `asked` is added to the
    commands of figures. `say` hears the name of each figure before it is drawn.
    """
    runs = [run for run in rows.read(root) if scale in (None, run.scale) or run.outcome == DAMAGED]
    tasks = [task for task in TASKS if any(run.task == task for run in runs)]
    items: list[Item] = []
    missing: list[Missing] = []
    with work_folder(Path(tempfile.gettempdir()), "pipemare-report-") as folder:
        for entry in entries:
            try:
                scales = entry.scales(runs) if entry.kind == "runs" else [""]
                for one in scales:
                    say(f"{entry.name} {one}".rstrip())
                    items.append(make(entry, folder, runs, one, data_root, asked))
                if not scales:
                    nearest = entry.nearest_scale(runs, scale)
                    lacks = ", ".join(entry.chosen(runs, nearest)[1])
                    missing.append(Missing(entry.name, f"scale {nearest}: {lacks}", entry.sweep(nearest)))
            except UserError as problem:
                missing.append(Missing(entry.name, str(problem), f"pipemare figures {entry.name} --only KEY=VALUE"))
    commit, dirty = provenance.commit()
    return Page(
        shown_root=shown_root or root.name,
        scale=scale,
        command=command,
        created=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        maker={
            "commit": commit,
            "dirty": dirty,
            "versions": provenance.versions(),
            "machine": provenance.machine(),
        },
        runs=runs,
        compared=[row for task in tasks for row in comparison.compare(runs, task)],
        items=items,
        missing=missing,
    )
