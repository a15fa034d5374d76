"""How a table is written: Markdown to read, LaTeX (booktabs) for a paper, CSV with the plain numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipemare_exp.analysis.csv import write_csv

_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "τ": r"$\tau$",
    "α": r"$\alpha$",
    "Δ": r"$\Delta$",
    "×": r"$\times$",
    "≥": r"$\geq$",
    "≤": r"$\leq$",
    "√": r"$\surd$",
    "–": "--",
    "·": r"$\cdot$",
    "⌈": r"$\lceil$",
    "⌉": r"$\rceil$",
    "λ": r"$\lambda$",
    "γ": r"$\gamma$",
}


def latex(text: str) -> str:
    """`text` with LaTeX's special characters escaped and the few symbols used here as commands."""
    return "".join(_LATEX.get(letter, letter) for letter in text)


def save(
    stem: Path,
    caption: str,
    columns: Sequence[tuple[str, str]],
    rows: Sequence[Mapping[str, Any]],
    notes: Sequence[str] = (),
    numbers: Sequence[Mapping[str, Any]] | None = None,
) -> list[Path]:
    """Writes `stem`.md, `stem`.tex and `stem`.csv; returns their paths.

    `columns`: (key, heading); `rows`: what is shown, by key; `numbers`: the rows of the CSV where they are
    not the shown text (then they hold every number in full).
    """
    stem = Path(stem)
    stem.parent.mkdir(parents=True, exist_ok=True)
    cells = [[str(row.get(key, "–")) for key, _ in columns] for row in rows]
    headings = [heading for _, heading in columns]
    markdown = stem.parent / f"{stem.name}.md"
    markdown.write_text(_markdown(caption, headings, cells, notes), encoding="utf-8")
    tex = stem.parent / f"{stem.name}.tex"
    tex.write_text(_tex(stem.name, caption, headings, cells, notes), encoding="utf-8")
    shown = [dict(zip([key for key, _ in columns], line, strict=True)) for line in cells]
    return [markdown, tex, write_csv(stem.parent / f"{stem.name}.csv", shown if numbers is None else numbers)]


def _markdown(caption: str, headings: list[str], cells: list[list[str]], notes: Sequence[str]) -> str:
    def line(texts: Sequence[str]) -> str:
        return "| " + " | ".join(text.replace("|", r"\|") for text in texts) + " |"

    body = [f"**{caption}**", "", line(headings), "|" + "---|" * len(headings), *map(line, cells)]
    if notes:
        body += ["", *(f"- {note}" for note in notes)]
    return "\n".join(body) + "\n"


def read_markdown(text: str) -> tuple[str, list[str], list[list[str]], list[str]]:
    """What `save` wrote as Markdown: caption, headings, the rows' cells, notes."""

    def cells(line: str) -> list[str]:
        return [cell.replace(r"\|", "|") for cell in line[2:-2].split(" | ")]

    lines = text.splitlines()
    table = [line for line in lines if line.startswith("|")]
    notes = [line[2:] for line in lines if line.startswith("- ")]
    return lines[0].strip("*"), cells(table[0]), [cells(line) for line in table[2:]], notes


def _tex(name: str, caption: str, headings: list[str], cells: list[list[str]], notes: Sequence[str]) -> str:
    def line(texts: Sequence[str]) -> str:
        return " & ".join(map(latex, texts)) + r" \\"

    body = [
        r"% needs \usepackage{booktabs}",
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{latex(caption)}}}",
        rf"\label{{tab:{name}}}",
        rf"\begin{{tabular}}{{{'l' * len(headings)}}}",
        r"\toprule",
        line(headings),
        r"\midrule",
        *map(line, cells),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    body += [rf"\\ {{\footnotesize {latex(note)}}}" for note in notes]
    return "\n".join([*body, r"\end{table}"]) + "\n"
