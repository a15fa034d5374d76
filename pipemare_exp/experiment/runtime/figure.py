"""The figure of a real pipeline's timeline: what its ranks did in some steps, and below it the schedule's own slots."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipemare_exp.errors import UserError
from pipemare_exp.experiment.config.load import from_mapping
from pipemare_exp.experiment.runtime.build import run_columns
from pipemare_exp.pipeline.schedule.versions import history_depth, slot_delays

COLOURS = {"forward": "C0", "backward": "C1", "recompute": "C2", "update": "C3", "evaluate": "0.8"}
LETTERS = {"F": "forward", "B": "backward", "R": "recompute", "U": "update"}


def draw(trace: Mapping[str, Any], tree: Mapping[str, Any], path: Path, first: int | None, steps: int) -> None:
    """Draw steps `first` to `first + steps - 1` (None: shortly before the end) of a trace as RUN/trace.json holds it.

    A microbatch's number is written where there is room. UserError where the trace has none of these steps.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.patches import Patch

    cfg = from_mapping(tree)
    events = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    known = sorted({event["args"]["step"] for event in events if event["cat"] == "forward"})
    begin = known[max(0, len(known) * 3 // 4 - steps)] if first is None else first
    last = begin + steps - 1
    first_stage = [event for event in events if event["tid"] == 0]
    starts = [e["ts"] for e in first_stage if e["cat"] == "forward" and e["args"]["step"] == begin]
    ends = [e["ts"] + e["dur"] for e in first_stage if e["cat"] == "update" and e["args"]["step"] == last]
    if not starts or not ends:
        raise UserError(f"steps {begin} to {last}: the trace holds steps {known[0]} to {known[-1]}")
    origin, span = min(starts), max(ends) - min(starts)
    chosen = [e for e in events if e["ts"] + e["dur"] > origin and e["ts"] < origin + span and e["dur"] > 0]
    figure, (top, bottom) = plt.subplots(2, 1, figsize=(11, 5.5), layout="constrained")
    for event in chosen:
        left, width = (event["ts"] - origin) / 1e3, event["dur"] / 1e3
        top.barh(event["pid"], width, left=left, height=0.8, color=COLOURS[event["cat"]], edgecolor="white", lw=0.3)
        number = event["name"][1:]
        inches = width * 1e3 / span * 8.8  # of the axes' width
        if inches > 0.05 * len(number) + 0.05 and event["cat"] in ("forward", "backward", "recompute"):
            top.text(left + width / 2, event["pid"], number, ha="center", va="center", fontsize=6, color="w")
    ranks = max(event["pid"] for event in events) + 1
    title = f"measured: steps {begin} to {last} of the first stage"
    top.set(xlabel="time (ms)", xlim=(0, span / 1e3), ylabel="rank", yticks=range(ranks), title=title)
    top.invert_yaxis()
    _draw_schedule(bottom, cfg, begin, steps)
    used = {event["cat"] for event in chosen}
    handles = [Patch(color=COLOURS[name], label=name) for name in COLOURS if name in used]
    figure.legend(handles=handles, loc="outside right upper")
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _draw_schedule(axes: Any, cfg: Any, begin: int, steps: int) -> None:
    pipeline = cfg.pipeline
    columns = run_columns(cfg)
    wide = 2 if columns.start is not None and begin >= columns.start and pipeline.slots == "duplex" else 1
    before = max(0, begin - 1 - history_depth(max(slot_delays(pipeline.stages, pipeline.slots)), pipeline.microbatches))
    first_stage = list(itertools.takewhile(lambda a: a.op != "U" or a.step < begin + steps, columns.stage(0, before)))
    low = next(a.slot for a in first_stage if a.op == "F" and a.step >= begin)
    high = first_stage[-1].slot
    for stage in range(pipeline.stages):
        for action in itertools.takewhile(lambda a: a.slot <= high, columns.stage(stage, before)):
            if action.op == "U" or action.slot < low:
                continue
            later = wide == 2 and action.op == "B"
            axes.barh(
                stage, 1 / wide, left=action.slot + later / wide, height=0.8, color=COLOURS[LETTERS[action.op]],
                edgecolor="white", lw=0.3,
            )  # fmt: skip
    axes.set(xlabel="slot", ylabel="stage", title="the schedule: every operation takes equally long")
    axes.invert_yaxis()
