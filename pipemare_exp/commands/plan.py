"""`pipemare plan`: what P stages and N microbatches mean for every method, before anything is trained."""

from __future__ import annotations

import argparse
import json
from typing import Any

from pipemare_exp.errors import UserError
from pipemare_exp.pipeline import costs, schedule, versions

HELP = "delays, versions, utilization, memory and the schedule grid of every method"

EPILOG = """\
examples:
  pipemare plan --stages 4 --microbatches 2 --steps 3      the schedule of every method as a grid
  pipemare plan --model resnet50 --microbatches 32         one stage per weight unit: 107
  pipemare plan --model resnet50 --stages 16 --microbatches 8 --optimizer adamw --json

Memory is in multiples of W, the size of the weights; activations in microbatches at one stage, summed over the
stages. All numbers are the model's, none is measured.
"""

GRID_STAGES = 8
GRID_SLOTS = 40


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `pipemare plan`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    parser.add_argument("--stages", type=int, metavar="P", help="pipeline stages (default: the model's weight units)")
    parser.add_argument("--microbatches", type=int, metavar="N", required=True, help="microbatches in a minibatch")
    parser.add_argument("--model", metavar="M", help="take P and the stages' sizes from a model, such as resnet50")
    parser.add_argument(
        "--optimizer", default="sgd_momentum", choices=("sgd_momentum", "adamw"), help="whose state to count"
    )
    parser.add_argument("--slots", default="duplex", choices=schedule.SLOT_KINDS, help="of asynchronous methods")
    parser.add_argument("--steps", type=int, metavar="T", help="show the versions (and grids) of the first T steps")
    parser.add_argument("--json", action="store_true", help="print JSON and nothing else")


def run(args: argparse.Namespace) -> int:
    """Prints the plan; UserError for numbers below 1, no P, or more stages than the model has weight units."""
    for name in ("stages", "microbatches", "steps"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise UserError(f"--{name} {value}; allowed: whole numbers from 1 on")
    stages, sizes = _stages(args.stages, args.model)
    plan = make_plan(stages, args.microbatches, args.optimizer, args.slots, args.steps, sizes)
    if args.json:
        print(json.dumps(plan))
    else:
        _show(plan, args.model, sizes, args.steps)
    return 0


def make_plan(
    stages: int,
    microbatches: int,
    optimizer: str = "sgd_momentum",
    slots: str = "duplex",
    steps: int | None = None,
    sizes: list[int] | None = None,
) -> dict[str, Any]:
    """The plan as `--json` prints it.

    `memory.stash_model` is there only with `sizes` (weights per stage), `versions` (of PipeMare, as
    [stage][step][microbatch]) only with `steps`. `activations.sqrt` is null where no recomputation is defined: for
    GPipe and in alternating slots.
    """
    plan: dict[str, Any] = {
        "stages": stages,
        "microbatches": microbatches,
        "slots": slots,
        "tau_fwd": versions.mean_delays(stages, microbatches, slots),
        "gpipe_ratio": costs.gpipe_ratio(stages, microbatches),
        "methods": {},
    }
    for method in costs.METHODS:
        memory = vars(costs.memory(method, stages, microbatches, optimizer, slots, sizes)).copy()
        if sizes is None:
            del memory["stash_model"]
        recomputes = method != "gpipe" and slots == "duplex"
        plan["methods"][method] = {
            "utilization": costs.utilization(method, stages, microbatches),
            "memory": memory,
            "activations": {
                "none": costs.activations(method, stages, microbatches, slots),
                "sqrt": costs.activations_recomputed(stages, costs.sqrt_segment(stages)) if recomputes else None,
            },
        }
    if steps is not None:
        walked = versions.walk(schedule.pipemare(stages, microbatches, steps, slots))
        plan["versions"] = {"forward": walked.forward, "backward": walked.backward}
    return plan


def _stages(stages: int | None, model: str | None) -> tuple[int, list[int] | None]:
    """P and, with a model, the number of weights of each stage."""
    if model is None:
        if stages is None:
            raise UserError("neither --stages nor --model; say how many stages: --stages 8, or --model resnet50")
        return stages, None
    from pipemare_exp.models import unit_sizes  # imports torch
    from pipemare_exp.pipeline.stages import choose_boundaries

    units = unit_sizes(model)
    if stages is None or stages == len(units):
        return len(units), units
    if stages > len(units):
        raise UserError(
            f"--stages {stages}, but {model} has {len(units)} weight units; allowed: 1 to {len(units)} stages"
        )
    first = choose_boundaries(units, stages)
    ends = [*first[1:], len(units)]
    return stages, [sum(units[begin:end]) for begin, end in zip(first, ends, strict=True)]


def _show(plan: dict[str, Any], model: str | None, sizes: list[int] | None, steps: int | None) -> None:
    """The plan for people: methods, stages and, where they fit, versions and grids."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    stages, microbatches, slots = plan["stages"], plan["microbatches"], plan["slots"]
    source = f" of {model} ({sum(sizes):,} weights)" if model and sizes else ""
    console.print(
        f"P = {stages} stages{source}, N = {microbatches} microbatches, {slots} slots. A GPipe step takes "
        f"(N+P-1)/N = {plan['gpipe_ratio']:.4g} times as long as an asynchronous one.\n"
    )
    table = Table(box=box.SIMPLE_HEAD, caption=_caption(plan, model), caption_justify="left")
    table.add_column("method", no_wrap=True)
    stash = ["stash"] if sizes is None else ["stash, equal", "stash, model"]
    for heading in ("utilization", "weights", "gradients", "optimizer", *stash, "T2", "activations", "recomputed"):
        table.add_column(heading, justify="right")
    for method, row in plan["methods"].items():
        numbers = [row["utilization"], *row["memory"].values(), *row["activations"].values()]
        table.add_row(method, *("-" if number is None else f"{number:.4g}" for number in numbers))
    console.print(table)

    table = Table(box=box.SIMPLE_HEAD, caption="delay: tau_fwd, in steps; versions: PipeDream's, the current one too")
    for heading in ("stage", "delay", "versions", *(() if sizes is None else ("weights",))):
        table.add_column(heading, justify="right")
    delays = versions.slot_delays(stages, slots)
    for s, tau in enumerate(plan["tau_fwd"]):
        if stages > 24 and 8 <= s < stages - 8:
            if s == 8:
                table.add_row(*["..."] * len(table.columns))
            continue
        size = [] if sizes is None else [f"{sizes[s]:,}"]
        table.add_row(str(s), f"{tau:.4g}", str(versions.history_depth(delays[s], microbatches) + 1), *size)
    console.print(table)
    if steps is not None:
        _show_schedules(stages, microbatches, steps, slots)


def _caption(plan: dict[str, Any], model: str | None) -> str:
    lines = ["weights to T2: in W, the weights' size; activations: in microbatches at one stage"]
    if model:
        lines.append("stash: with stages of equal size; with the model's own sizes")
    if plan["slots"] == "duplex":
        lines.append(f"recomputed: activations with segments of {costs.sqrt_segment(plan['stages'])} stages")
    return "\n".join(lines)


def _show_schedules(stages: int, microbatches: int, steps: int, slots: str) -> None:
    """Grid of every method, with the versions that its forwards and backwards read; by `print`, which never wraps."""
    alike = schedule.pipedream(stages, microbatches, steps, slots)
    drawn = (
        ("GPipe (alternating slots)", schedule.gpipe(stages, microbatches, steps)),
        (f"PipeDream ({slots} slots)", alike),
        (f"PipeMare ({slots} slots), with or without T2", schedule.pipemare(stages, microbatches, steps, slots)),
    )
    for title, plan in drawn:
        if stages > GRID_STAGES or plan.length > GRID_SLOTS:
            print(
                f"{title}: {stages} stages x {plan.length} slots, utilization {plan.utilization():.4g} with fill and "
                f"drain; grids are drawn up to {GRID_STAGES} x {GRID_SLOTS}"
            )
            continue
        print(f"{title}: utilization {plan.utilization():.4g} with fill and drain; * updates at the slot's end")
        print(plan.render())
        walked = versions.walk(plan)
        print("versions read by the forward/backward of each microbatch, step by step:")
        for s in range(stages):
            pairs = zip(walked.forward[s], walked.backward[s], strict=True)
            step_texts = [" ".join(f"{f}/{b}" for f, b in zip(*pair, strict=True)) for pair in pairs]
            print(f"stage {s} " + " | ".join(step_texts))
        print()
