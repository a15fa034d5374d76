"""Benchmark results as a file that says how they were made, and as the tables that are made from it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipemare_exp.bench.runtime_memory import totals
from pipemare_exp.experiment.runs import provenance
from pipemare_exp.experiment.runs.writing import write_json


def add(path: Path, found: dict[str, Any], argv: Sequence[str]) -> None:
    """Write the measurements `found`, by name, into `path`; others that are there stay.

    Each has its own command, commit, versions and machine: they may have been made at different times.
    """
    recorded = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    commit, dirty = provenance.commit()
    machine, versions = provenance.machine(), provenance.versions()
    for name, rows in found.items():
        recorded[name] = {
            "command": shlex.join(["pipemare", *argv]),
            "commit": commit,
            "dirty": dirty,
            "machine": {"cpu": machine["processor"], "cores": machine["cores"]},
            "versions": {package: versions[package] for package in ("python", "torch")},
            "rows": rows,
        }
    write_json(path, recorded)


def tables(recorded: dict[str, Any]) -> str:
    """Markdown tables, modelled beside measured, of what `pipemare bench runtime --out FILE` wrote."""
    made = {"sleep": _sleep, "compute": _compute, "memory": _memory}
    parts = []
    order = list(made)
    for name in sorted(recorded, key=lambda name: (order.index(name.split()[0]), name)):
        part = recorded[name]
        commit = (part["commit"] or "unknown")[:7]
        machine = f"{part['machine']['cpu']}, {part['machine']['cores']} cores, torch {part['versions']['torch']}"
        parts.append(f"`{part['command']}` (commit {commit}; {machine}):\n\n{made[name.split()[0]](part['rows'])}")
    return "\n\n".join(parts) + "\n"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _sleep(rows: list[dict[str, Any]]) -> str:
    header = ("P", "N", "method", "utilization, model", "measured", "lowest rank", "over GPipe, model", "measured")
    cells = [
        [str(row["stages"]), str(row["microbatches"]), row["method"], _number(row["utilization_model"]),
         _number(row["utilization"]), _number(row["utilization_min"]), _number(row.get("over_gpipe_model")),
         _number(row.get("over_gpipe"))]
        for row in rows
    ]  # fmt: skip
    return _table(header, cells)


def _compute(rows: list[dict[str, Any]]) -> str:
    header = ("model", "batch", "N", "method", "steps/s", "utilization, model", "measured", "over our GPipe, model",
              "measured (min-max)", "over torch's GPipe", "over torch's 1F1B")  # fmt: skip
    cells = [
        [row["model"], str(row["batch"]), str(row["microbatches"]), row["method"], f"{row['steps_per_second']:.3g}",
         _number(row["utilization_model"]), _number(row["utilization"]), _number(row["over_gpipe_model"]),
         f"{row['over_gpipe']:.2f} ({row['over_gpipe_min']:.2f}-{row['over_gpipe_max']:.2f})",
         _number(row.get("over_torch_gpipe")), _number(row.get("over_torch_1f1b"))]
        for row in rows
    ]  # fmt: skip
    return _table(header, cells)


def _memory(rows: list[dict[str, Any]]) -> str:
    header = ("N", "method", "rank", "weights MB", "past versions and copies, model", "measured",
              "stash on average, model", "T2's delta, model", "measured", "process over GPipe's")  # fmt: skip
    cells = [
        [str(row["microbatches"]), row["method"], str(row["rank"]),
         *(f"{row[name] / 1e6:.2f}" for name in ("weights", "history_model", "history", "stash_mean_model",
                                                 "delta_model", "delta", "resident_over_gpipe"))]
        for row in rows
        if row["method"] != "gpipe"
    ]  # fmt: skip
    whole = ("N", "method", "stash on average, model", "versions and copies, measured", "T2, model", "measured",
             "processes over GPipe's")  # fmt: skip
    names = ("stash_model", "history", "delta_model", "delta", "resident_over_gpipe")
    summed = [
        [str(row["microbatches"]), row["method"], *(f"{row[name]:.2f}" for name in names)] for row in totals(rows)
    ]
    return f"{_table(header, cells)}\n\nAll ranks together, in W:\n\n{_table(whole, summed)}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
