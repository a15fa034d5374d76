"""How `pipemare plan` shows a plan to people: tables of methods, schedules and delays, and grids."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from pipemare_exp import methods
from pipemare_exp.pipeline.schedule import comparison, costs, versions
from pipemare_exp.pipeline.schedule import orders as schedule

GRID_STAGES = 8
GRID_SLOTS = 40
TABLE_WIDTH = 100
DELAY_ROWS = 24
"""Above this number of stages the table of delays leaves out those in the middle."""


def show(
    plan: dict[str, Any],
    model: str | None,
    sizes: list[int] | None,
    steps: int | None,
    rows: Sequence[comparison.Row] | None,
) -> None:
    """The plan for people: methods, delays and, with `steps`, versions and grids."""
    stages, microbatches, slots = plan["stages"], plan["microbatches"], plan["slots"]
    source = f" of {model} ({sum(sizes):,} weights)" if sizes else ""
    print(f"P = {stages} stages{source}, N = {microbatches} microbatches, {slots} slots.")
    print(f"A GPipe step takes (N+P-1)/N = {plan['gpipe_ratio']:.6g} times as long as an asynchronous step.")
    print(f"An asynchronous pipeline fills once, for {plan['refill']:.6g} steps: at the start, or after T3.")
    _show_methods(plan)
    if rows is None:
        print("Too many stages and microbatches for a table of schedules; `pipemare plan --help` says how many.\n")
    else:
        _show_comparison(rows, stages)
    _show_delays(plan, sizes)
    if steps is not None:
        _show_schedules(stages, microbatches, steps, slots)


def _show_methods(plan: dict[str, Any]) -> None:
    segment = costs.sqrt_segment(plan["stages"])
    columns = {
        "util.": lambda method: method["utilization"],
        "weights": lambda method: method["memory"]["weights"],
        "stash": lambda method: method["memory"]["stash_uniform"],
        "model's": lambda method: method["memory"].get("stash_model"),
        "buffers": lambda method: method["memory"]["buffers"],
        "activ.": lambda method: method["activations"]["none"],
        f"S = {segment}": lambda method: method["activations"]["sqrt"],
    }
    possible = {name: method for name, method in plan["methods"].items() if method["refused"] is None}
    cells = {head: [_number(value(method)) for method in possible.values()] for head, value in columns.items()}
    shown = {head: values for head, values in cells.items() if set(values) != {"-"}}
    show_table(["", *shown], [list(row) for row in zip(possible, *shown.values(), strict=True)])
    same = next(iter(plan["methods"].values()))["memory"]
    beside = f"gradients, {_number(same['gradients'])} W, and optimizer, {_number(same['optimizer'])} W"
    print("util.: utilization. In W, the weights' size: weights, stash (with stages of equal size; the model's),")
    print(f"buffers (such as T2's); beside them {beside}.")
    print(f"activ.: activations held, in microbatches at one stage; S = {segment}: in segments of {segment}.")
    for name, method in plan["methods"].items():
        if method["refused"] is not None:
            print(textwrap.fill(f"Not {name}: {method['refused']}.", 100))
    print()


def _show_comparison(rows: Sequence[comparison.Row], devices: int) -> None:
    """The schedules by walking them, and why some cannot be had."""
    cells = []
    for row in rows:
        if row.delay is not None:
            numbers = (row.stages, row.utilization, row.step, row.activations, row.fullest, row.weights, *row.delay)
            cells.append([row.title, *map(_number, numbers)])
        else:
            cells.append([row.title, *["-"] * 8])
    show_table(["", "stages", "busy", "step", "held", "most", "W", "delay", "mean"], cells)
    print(f"Schedules on {devices} devices, walked with a clock; `pipemare plan --help` says what the columns are.")
    for row in rows:
        if row.why_not is not None:
            print(textwrap.fill(f"{row.title}: {row.why_not}", 96, subsequent_indent="  "))
    print()


def _number(value: float | None) -> str:
    """Four digits, integers whole, `-` for what is not defined."""
    if value is None:
        return "-"
    return str(int(value)) if value == int(value) else f"{value:.4g}"


def _show_delays(plan: dict[str, Any], sizes: list[int] | None) -> None:
    stages, microbatches = plan["stages"], plan["microbatches"]
    delays = versions.slot_delays(stages, plan["slots"])
    rows = []
    for s, tau in enumerate(plan["tau_fwd"]):
        kept = versions.history_depth(delays[s], microbatches) + 1
        drawn = [_number(means[s]) for means in plan["drawn"].values()]
        rows.append([str(s), _number(tau), *drawn, str(kept), *([] if sizes is None else [f"{sizes[s]:,}"])])
    if stages > DELAY_ROWS:
        ends = DELAY_ROWS // 3
        rows = [*rows[:ends], ["..."] * len(rows[0]), *rows[-ends:]]
    drawing = [f"{name} (drawn)" for name in plan["drawn"]]
    show_table(["stage", "delay (steps)", *drawing, "versions", *([] if sizes is None else ["weights"])], rows)
    if drawing:
        print("Drawn: the mean of the whole delays that the method draws; rounding shortens short ones.")
    print("Versions: the most that PipeDream keeps at one moment, the current one included.\n")


def show_table(header: list[str], rows: list[list[str]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    for k, heading in enumerate(header):
        table.add_column(heading, justify="right" if k or heading else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    Console(highlight=False, width=TABLE_WIDTH).print(table)


def _show_schedules(stages: int, microbatches: int, steps: int, slots: str) -> None:
    """Grid of every schedule, with the paper's methods that have it, and the versions that they read; by `print`, which
    never wraps. Later methods run under the same schedules and may read other versions."""
    drawn: dict[tuple[bool, bool], list[str]] = {}
    for kind in methods.METHODS.values():
        for declared in list(kind.costs.values())[:1] if kind.study is None else ():
            drawn.setdefault((declared.flushed, declared.stash > 0), []).append(kind.title)
    for (flushed, stashes), titles in drawn.items():
        if flushed:
            plan = schedule.gpipe(stages, microbatches, steps)
        else:
            plan = (schedule.pipedream if stashes else schedule.pipemare)(stages, microbatches, steps, slots)
        print(f"{', '.join(titles)} ({plan.slots} slots): utilization {plan.utilization():.4g} with fill and drain")
        if stages > GRID_STAGES or plan.length > GRID_SLOTS:
            print(f"  {stages} stages x {plan.length} slots; grids go up to {GRID_STAGES} x {GRID_SLOTS}\n")
            continue
        print(plan.render())
        print("* updates at the slot's end. Versions read by forward/backward, step by step:")
        walked = versions.walk(plan)
        for s in range(stages):
            by_step = zip(walked.forward[s], walked.backward[s], strict=True)
            texts = [" ".join(f"{f}/{b}" for f, b in zip(*pair, strict=True)) for pair in by_step]
            print(f"stage {s} {' | '.join(texts)}")
        print()
