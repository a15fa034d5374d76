"""What does the page show of a figure or table, and of which runs is it made?"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from paper_figures import tables
from paper_figures.registry import Entry
from pipemare_exp.analysis import data_of_runs
from pipemare_exp.analysis.row import RunRow

MIME = {".svg": "image/svg+xml", ".png": "image/png", ".csv": "text/csv", ".md": "text/markdown", ".tex": "text/x-tex"}
LARGEST_SVG = 600_000  # bytes; above, the PNG is smaller and looks the same on a screen
ENLARGED = 1.35  # figures are set in 8 points for paper


@dataclass(frozen=True)
class Picture:
    """An image as a data URI, with its width on the page in pixels and the text for who cannot see it."""

    uri: str
    width: int
    alt: str


@dataclass(frozen=True)
class Table:
    """A table's cells as text."""

    caption: str
    headings: list[str]
    rows: list[list[str]]
    notes: list[str]


@dataclass(frozen=True)
class Item:
    """One figure or table on the page. `files`: (name, data URI) of what to take away; `runs`: what it is made of."""

    name: str
    anchor: str
    scale: str
    what: str
    command: str
    sweep: str | None
    picture: Picture | None = None
    table: Table | None = None
    files: list[tuple[str, str]] = field(default_factory=list)
    runs: list[RunRow] = field(default_factory=list)

    @property
    def data_notes(self) -> list[str]:
        """What there is to say where the runs of a figure had different data; a table says it itself."""
        return [] if self.table else data_of_runs.note(self.runs)

    @property
    def shared(self) -> dict[str, str]:
        """The settings that all runs have in common."""
        first, *rest = [row.settings for row in self.runs] or [{}]
        return {key: text for key, text in first.items() if all(one.get(key) == text for one in rest)}

    def differing(self, row: RunRow) -> str:
        """The settings of a run that not all have: `method.label=t1, optimizer.rate=0.1`."""
        return ", ".join(f"{key}={text}" for key, text in row.settings.items() if key not in self.shared)


def make(entry: Entry, out: Path, rows: Sequence[RunRow], scale: str, data_root: Path | None, asked: str) -> Item:
    """Draws `entry` into the folder `out` and reads what was written. `asked`: more options of its command."""
    paths = {path.suffix: path for path in entry.make(out, rows, scale, data_root)}
    from_runs = entry.kind == "runs"
    what = entry.what()
    about = f"{what} {entry.task}, scale {scale}." if from_runs else what
    picture = table = None
    if ".svg" in paths:
        small = paths[".svg"].stat().st_size <= LARGEST_SVG
        path = paths[".svg" if small else ".png"]
        alt = f"{about} The plotted numbers are in the CSV file below."
        picture = Picture(data_uri(path), _width(paths[".svg"]), alt)
    if ".md" in paths:
        caption, headings, cells, notes = tables.read_markdown(paths[".md"].read_text(encoding="utf-8"))
        unbroken = [[cell.replace(" ± ", "\u00a0±\u00a0") for cell in row] for row in cells]
        table = Table(caption, headings, unbroken, notes)
    options = f" --scale {scale}{asked}" if from_runs else ""
    return Item(
        name=entry.name,
        anchor=f"{entry.name}_{scale}" if from_runs else entry.name,
        scale=scale if from_runs else "",
        what=what,
        command=f"pipemare figures {entry.name}{options}",
        sweep=entry.sweep(scale) if from_runs else None,
        picture=picture,
        table=table,
        files=[(path.name, data_uri(path)) for path in paths.values() if path.suffix not in (".svg", ".png")],
        runs=sorted(entry.chosen(rows, scale)[0], key=lambda row: row.name) if from_runs else [],
    )


def data_uri(path: Path) -> str:
    """The file as a `data:` URI."""
    return f"data:{MIME[path.suffix]};base64,{base64.b64encode(path.read_bytes()).decode()}"


def _width(svg: Path) -> int:
    """Pixels that a figure is given on the page, from the width in points that its file states."""
    found = re.search(r'<svg[^>]* width="([\d.]+)pt"', svg.read_text(encoding="utf-8")[:2000])
    return round(float(found[1]) * 4 / 3 * ENLARGED) if found else 600
