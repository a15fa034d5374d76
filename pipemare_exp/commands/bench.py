"""`pipemare bench`: measures on this machine; nothing of it enters a test."""

from __future__ import annotations

import argparse
import json

HELP = "measure what emulation costs"

EXAMPLES = """examples:
  pipemare bench emulator
  pipemare bench emulator --model resnet20 --method t1+t2 --threads 1 --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("what", choices=["emulator"], help="emulator: emulated steps against plain PyTorch ones")
    parser.add_argument("--model", action="append", help="a model (may be repeated); default: all")
    parser.add_argument("--method", action="append", help="a method's label (may be repeated); default: t1+t2")
    parser.add_argument("--microbatches", type=int, default=8, help="N (default 8)")
    parser.add_argument("--batch", type=int, help="examples in a minibatch; default: the model's")
    parser.add_argument("--pairs", type=int, default=10, help="alternating pairs of steps (default 10)")
    parser.add_argument("--threads", type=int, default=2, help="threads (default 2)")
    parser.add_argument("--json", action="store_true", help="print JSON only")


def run(args: argparse.Namespace) -> int:
    from pipemare_exp.bench import emulator, workloads
    from pipemare_exp.errors import UserError, suggest

    for name in ("microbatches", "pairs", "threads"):
        if getattr(args, name) < 1:
            raise UserError(f"--{name} {getattr(args, name)}: must be at least 1")
    for method in args.method or []:
        if method not in workloads.METHODS:
            known = ", ".join(workloads.METHODS)
            raise UserError(f"--method {method}: known are {known}{suggest(method, workloads.METHODS)}")
    rows = [
        emulator.compare(
            model, method, args.microbatches, batch=args.batch, pairs=args.pairs, threads=args.threads
        )
        for model in args.model or list(workloads.BATCHES)
        for method in args.method or ["t1+t2"]
    ]
    if args.json:
        print(json.dumps(rows, indent=2))
        return 0
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"emulated over plain PyTorch, {args.pairs} alternating pairs, {args.threads} threads")
    for column in ("model", "method", "P", "N", "batch", "plain s", "emulated s", "ratio (min-max)", "extra MB",
                   "predicted MB"):  # fmt: skip
        table.add_column(column)
    for row in rows:
        table.add_row(
            row["model"], row["method"], str(row["stages"]), str(row["microbatches"]), str(row["batch"]),
            f"{row['plain_seconds']:.3f}", f"{row['emulated_seconds']:.3f}",
            f"{row['ratio_median']:.3f} ({row['ratio_min']:.3f}-{row['ratio_max']:.3f})",
            f"{row['extra_memory'] / 1e6:.1f}", f"{row['predicted_memory'] / 1e6:.1f}",
        )  # fmt: skip
    Console().print(table)
    return 0
