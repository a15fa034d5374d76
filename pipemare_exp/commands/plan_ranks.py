"""`pipemare plan --ranks R`: which stages lie on which rank and node of `engine=runtime`, and what each holds."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from dataclasses import asdict

from pipemare_exp import methods
from pipemare_exp.arguments import whole
from pipemare_exp.pipeline.schedule.ranks import RankPlan, plan_ranks

MOST = 10_000
"""Ranks that can be planned."""

BYTES = 4
"""Of a weight in float32."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the plan over ranks."""
    parser.add_argument(
        "--ranks", type=whole(high=MOST), metavar="R", help="show what each of R ranks of engine=runtime holds"
    )
    text = "ranks that one node takes (default: the cores that this machine gives us)"
    parser.add_argument("--per-node", type=whole(high=MOST), metavar="K", help=text)


def run(args: argparse.Namespace, stages: int, sizes: Sequence[int] | None, optimizer: str) -> int:
    """Prints the plan of `--ranks`. UserError for more ranks than stages."""
    per_node = args.per_node or len(os.sched_getaffinity(0))
    plans = plan_ranks(
        methods.costs(), stages, args.microbatches, args.ranks, per_node, optimizer, args.slots, sizes
    )  # fmt: skip
    if args.json:
        found = {"stages": stages, "microbatches": args.microbatches, "per_node": per_node}
        print(json.dumps({**found, "ranks": [asdict(plan) for plan in plans]}))
        return 0
    _show(plans, args, stages, sizes is not None, per_node)
    return 0


def _show(plans: list[RankPlan], args: argparse.Namespace, stages: int, sized: bool, per_node: int) -> None:
    nodes = plans[-1].node + 1
    where = f"{args.ranks} ranks on {nodes} node{'s' if nodes > 1 else ''} of up to {per_node}"
    print(f"P = {stages} stages, N = {args.microbatches} microbatches, {args.slots} slots, {where}.\n")

    def amount(number: float) -> str:
        return f"{BYTES * number / 1e6:.4g}" if sized else f"{number:.4g}"

    unit = "MB (float32)" if sized else "W, the size of all weights"
    print(f"Live weights, gradients, optimizer state, past versions and copies, the method's buffers, in {unit}:")
    _table(plans, {"weights": [amount(plan.weights) for plan in plans]},
           {name: [amount(plan.held[name]) for plan in plans] for name in plans[0].held})  # fmt: skip
    print(f"Activations at the peak, in microbatches at one stage (a warm-up, T3, holds {args.microbatches} a stage):")
    _table(plans, {}, {name: [str(plan.activations[name]) for plan in plans] for name in plans[0].activations})
    if nodes == 1:
        print(f"Start it with\n  pipemare train ... engine=runtime engine.ranks={args.ranks}")
        return
    even = [sum(plan.node == node for plan in plans) for node in range(nodes)]
    if len(set(even)) > 1:
        print(f"Nodes take {', '.join(map(str, even))} ranks: torchrun wants the same number on each.")
        return
    print(
        "Start it on every node with (HOST: the first one; more in docs/runtime.md)\n"
        f"  torchrun --nnodes {nodes} --nproc-per-node {even[0]} --rdzv-backend c10d --rdzv-endpoint HOST:29500 \\\n"
        "      -m pipemare_exp train ... engine=runtime"
    )


def _table(plans: list[RankPlan], *columns: dict[str, list[str]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    named = {name: cells for each in columns for name, cells in each.items()}
    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("rank", "node", "stages", *named):
        table.add_column(heading, justify="right", no_wrap=True)
    for plan, *cells in zip(plans, *named.values(), strict=True):
        stages = str(plan.first) if plan.first == plan.last else f"{plan.first}-{plan.last}"
        table.add_row(str(plan.rank), str(plan.node), stages, *cells)
    Console(highlight=False, width=120).print(table)
