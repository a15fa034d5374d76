"""How every figure looks, and how it is written to disk.

One colour, marker and dash per method label, the same in every figure: the colours are seaborn's
colour-blind safe palette, and markers and dashes tell the methods apart where a print is grey. Sizes are
those of a two-column paper. Output is deterministic: the same numbers give the same bytes (fixed SVG ids,
no dates).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import matplotlib
import seaborn
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pipemare_exp import methods
from pipemare_exp.analysis.csv import write_csv

COLUMN_INCHES = 3.35
PAGE_INCHES = 6.9
PNG_DPI = 200

_PALETTE = seaborn.color_palette("colorblind").as_hex()


class Look(NamedTuple):
    """How a method is drawn: its name in legends, colour, marker and dash pattern."""

    name: str
    color: str
    marker: str
    dash: Any


LOOKS: dict[str, Look] = {
    "gpipe": Look("GPipe (synchronous)", "#222222", "o", "solid"),
    "pipedream": Look("PipeDream", _PALETTE[1], "s", (0, (5, 1.5))),
    "async": Look("asynchronous, nothing", _PALETTE[3], "v", (0, (1, 1))),
    "t1": Look("T1", _PALETTE[0], "^", (0, (4, 1, 1, 1))),
    "t2": Look("T2", _PALETTE[4], "D", (0, (2, 1))),
    "t1+t2": Look("T1+T2", _PALETTE[9], "P", (0, (6, 1, 1, 1, 1, 1))),
    "t1+t2+t3": Look("T1+T2+T3 (PipeMare)", _PALETTE[2], "*", "solid"),
    "t1+t3": Look("T1+T3", _PALETTE[5], "X", (0, (3, 1))),
    "t2+t3": Look("T2+T3", _PALETTE[7], "<", (0, (3, 2))),
    "t3": Look("T3", _PALETTE[8], ">", (0, (1, 2))),
    "hogwild": Look("Hogwild!-style", _PALETTE[3], "v", (0, (1, 1))),
    "hogwild+t1": Look("Hogwild!-style, T1", _PALETTE[0], "^", (0, (4, 1, 1, 1))),
}
_SPARE_DASHES = [(0, (2, 2)), (0, (7, 2)), (0, (1, 3)), (0, (5, 1, 1, 1))]
_SPARE_MARKERS = "hp8d"

RC: Any = {
    "font.size": 8.0,
    "axes.titlesize": 8.0,
    "axes.labelsize": 8.0,
    "xtick.labelsize": 7.0,
    "ytick.labelsize": 7.0,
    "legend.fontsize": 6.5,
    "legend.frameon": False,
    "legend.handlelength": 2.6,
    "lines.linewidth": 1.3,
    "lines.markersize": 3.6,
    "axes.linewidth": 0.6,
    "axes.grid": True,
    "grid.linewidth": 0.4,
    "grid.color": "#dddddd",
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "savefig.dpi": PNG_DPI,
    "svg.hashsalt": "pipemare",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
}

_F = TypeVar("_F", bound=Callable[..., Any])


def look(label: str) -> Look:
    """The look of a method label; a label this file does not know gets a grey one, the same each time."""
    if label in LOOKS:
        return LOOKS[label]
    spare = sum(label.encode()) % len(_SPARE_DASHES)
    return Look(methods.title(label), "#777777", _SPARE_MARKERS[spare], _SPARE_DASHES[spare])


def in_order(labels: Iterable[str]) -> list[str]:
    """Distinct labels in the order in which legends and tables name them."""
    return sorted(set(labels), key=methods.place)


def line_style(label: str) -> dict[str, Any]:
    """Keyword arguments for `Axes.plot` that give a method its colour, marker, dash and legend name."""
    one = look(label)
    return {"color": one.color, "marker": one.marker, "linestyle": one.dash, "label": one.name}


def palette(count: int) -> list[str]:
    """Colours for series that are not methods, dark to light, so that they differ in grey too."""
    return seaborn.color_palette("viridis", count).as_hex()


def styled(function: _F) -> _F:
    """Decorator: draws with the common settings, and leaves the caller's matplotlib settings as they were."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with matplotlib.rc_context({**seaborn.axes_style("ticks"), **RC}):
            return function(*args, **kwargs)

    return wrapper  # type: ignore[return-value]


def figure(
    rows: int = 1, columns: int = 1, *, width: float = COLUMN_INCHES, height: float = 2.3, **subplots: Any
) -> tuple[Figure, Any]:
    """A figure of `width` x `height` inches and its axes, as `plt.subplots` gives them; needs no backend."""
    fig = Figure(figsize=(width, height), layout="constrained")
    return fig, fig.subplots(rows, columns, **subplots)


def legend_below(fig: Figure, axes: Axes, columns: int = 3) -> None:
    """One legend under the axes of a figure, where it can cover no curve."""
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        fig.legend(handles, labels, loc="outside lower center", ncols=columns, columnspacing=1.2)


def save(fig: Figure, stem: Path, table: Sequence[Mapping[str, Any]]) -> list[Path]:
    """Writes `stem`.svg, `stem`.png (200 dpi) and the plotted numbers as `stem`.csv; returns the paths."""
    stem = Path(stem)
    stem.parent.mkdir(parents=True, exist_ok=True)
    svg, png, numbers = (stem.parent / f"{stem.name}.{ending}" for ending in ("svg", "png", "csv"))
    with matplotlib.rc_context(RC):
        fig.savefig(svg, metadata={"Date": None, "Creator": None})
        fig.savefig(png, dpi=PNG_DPI, metadata={"Software": None})
    write_csv(numbers, table)
    return [svg, png, numbers]
