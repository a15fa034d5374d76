"""The published numbers, read from published.yaml: each with the source it is known from."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

import yaml

# What each number must say of itself; one without a source is never shown, so it is not accepted either.
_NEEDED = {"what", "value", "source"}


@cache
def _file() -> dict[str, Any]:
    tree = yaml.safe_load(
        resources.files("pipemare_exp.analysis").joinpath("published.yaml").read_text(encoding="utf-8")
    )
    for one in tree["numbers"]:
        unknown = set(one.get("source", ())) - set(tree["sources"])
        if not _NEEDED <= set(one) or not one["source"] or unknown:
            raise ValueError(f"published.yaml: {one} lacks one of {sorted(_NEEDED)} or names an unknown source")
    return tree


def numbers(what: str, **fields: Any) -> list[dict[str, Any]]:
    """The entries of a kind (`best`, `utilization_ratio`, ...) whose named fields have these values."""
    return [
        one
        for one in _file()["numbers"]
        if one["what"] == what and all(one.get(key) == value for key, value in fields.items())
    ]


def best_of(task: str, method: str) -> list[dict[str, Any]]:
    """The published best metrics of a method label; PipeMare without warm-up is the label `t1+t2`."""
    also = numbers("best", task=task, method="pipemare_without_warmup") if method == "t1+t2" else []
    return numbers("best", task=task, method=method) + also


def source(entry: dict[str, Any]) -> str:
    """Where an entry is known from, written out: `A: abstract of ...; D: a digest of ...`."""
    return "; ".join(f"{letter}: {_file()['sources'][letter]}" for letter in entry["source"])


def shown(entry: dict[str, Any]) -> str:
    """An entry as a table shows it: `up to 4.3 [A, D]`."""
    qualifier = f"{entry['qualifier']} " if "qualifier" in entry else ""
    return f"{qualifier}{entry['value']} [{', '.join(entry['source'])}]"


def sources_note(entries: list[dict[str, Any]]) -> list[str]:
    """What the letters in these entries stand for, one note a letter, and every entry's own note."""
    letters = sorted({letter for one in entries for letter in one["source"]})
    return [f"Source {letter}: {_file()['sources'][letter]}." for letter in letters] + [
        f"Published {shown(one)}: {one['note']}." for one in entries if one.get("note")
    ]
