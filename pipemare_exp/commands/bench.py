"""`pipemare bench`: measures on this machine; nothing of it enters a test."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from pathlib import Path
from typing import Any

HELP = "measure what emulation costs, and what real pipelines reach"

EXAMPLES = """examples:
  pipemare bench emulator
  pipemare bench emulator --model resnet20 --method t1+t2 --threads 1 --out bench.json
  pipemare bench emulator --scaling                       its cost by stages, microbatches and size of the model
  pipemare bench runtime                                  8 ranks that sleep, then real computation on 2
  pipemare bench runtime --only sleep --stages 8 --seconds 0.05 --json
  pipemare bench runtime --only compute --model digits_resnet --rounds 3
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "what",
        choices=["emulator", "runtime"],
        help="emulator: emulated steps against plain PyTorch ones; runtime: pipelines of real processes, with stages "
        "of fixed latency, and against torch.distributed.pipelining",
    )
    parser.add_argument("--model", action="append", help="a model (may be repeated); default: all")
    parser.add_argument("--method", action="append", help="a method's label (may be repeated); default: gpipe, t1+t2")
    parser.add_argument("--microbatches", type=int, default=8, help="N (default 8)")
    parser.add_argument("--batch", type=int, help="examples in a minibatch; default: the model's")
    parser.add_argument(
        "--pairs", type=int, default=10, help="rounds in which plain PyTorch and every method make a step (default 10)"
    )
    parser.add_argument("--threads", type=int, default=2, help="threads (default 2)")
    parser.add_argument("--json", action="store_true", help="print JSON only")
    ours = parser.add_argument_group("emulator only")
    ours.add_argument("--scaling", action="store_true", help="vary stages, microbatches and width of a ResNet-50")
    ours.add_argument("--no-memory", action="store_true", help="leave out the peaks of memory (two steps each)")
    ours.add_argument(
        "--clock", choices=["wall", "cpu"], default="wall",
        help="cpu: the process's own time, for a busy machine; needs --threads 1",
    )
    ours.add_argument("--out", metavar="FILE", help="write what --json prints into a file, beside the table")
    only = parser.add_argument_group("runtime only")
    only.add_argument("--only", choices=["sleep", "compute"], help="one of its two measurements")
    only.add_argument("--stages", type=int, default=8, help="sleep: stages, each a process (default 8)")
    only.add_argument("--seconds", type=float, default=0.05, help="sleep: what every operation takes (default 0.05)")
    only.add_argument("--rounds", type=int, default=3, help="compute: times that all methods take turns (default 3)")
    only.add_argument("--steps", type=int, default=20, help="compute: steps of each measurement (default 20)")


def run(args: argparse.Namespace) -> int:
    from pipemare_exp.errors import UserError

    for name in ("microbatches", "pairs", "threads", "rounds", "steps", "stages"):
        if getattr(args, name) < 1:
            raise UserError(f"--{name} {getattr(args, name)}: must be at least 1")
    if args.what == "runtime":
        return _runtime(args)
    return _emulator(args)


def _emulator(args: argparse.Namespace) -> int:
    from pipemare_exp.bench import emulator, scaling, workloads
    from pipemare_exp.errors import UserError, suggest
    from pipemare_exp.experiment import provenance

    wanted = args.method or (["t1+t2"] if args.scaling else ["gpipe", "t1+t2"])
    for method in wanted:
        if method not in workloads.METHODS:
            known = ", ".join(workloads.METHODS)
            raise UserError(f"--method {method}: known are {known}{suggest(method, workloads.METHODS)}")
    if args.scaling and (args.model or args.batch or len(wanted) > 1):
        raise UserError("--scaling has its own models and minibatches and takes one --method; leave out the others")
    if args.clock == "cpu" and args.threads != 1:
        raise UserError(f"--clock cpu with --threads {args.threads}: it adds up the threads' time; take --threads 1")
    commit, dirty = provenance.commit()
    rows: list[dict[str, Any]] = []
    if args.scaling:
        rows = scaling.scaling(wanted[0], args.pairs, args.threads, args.clock)
    for model in [] if args.scaling else args.model or list(workloads.BATCHES):
        rows += emulator.compare(
            model, wanted, args.microbatches, batch=args.batch, pairs=args.pairs, threads=args.threads,
            memory=not args.no_memory, clock=args.clock,
        )  # fmt: skip
    found = {
        "command": shlex.join(["pipemare", *sys.argv[1:]]),
        "commit": commit,
        "dirty": dirty,
        "machine": provenance.machine(),
        "versions": provenance.versions(),
        "rows": rows,
    }
    if args.out:
        try:
            Path(args.out).write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            raise UserError(f"--out {args.out}: cannot write it: {error.strerror}") from error
    if args.json:
        print(json.dumps(found, indent=2))
        return 0
    _show_emulator(rows, args)
    return 0


def _show_emulator(rows: list[dict[str, Any]], args: argparse.Namespace) -> None:
    from rich.console import Console
    from rich.table import Table

    def megabytes(value: int | None) -> str:
        return "-" if value is None else f"{value / 1e6:.1f}"

    table = Table(
        title=f"emulation over plain PyTorch, {args.pairs} rounds, threads: {args.threads}, {args.clock} time"
    )
    for column in ("model", "method", "P", "N", "batch", "s a step", "ratio (min-max)", "over ms", "moved MB",
                   "peak MB", "extra MB", "by formula"):  # fmt: skip
        table.add_column(column, justify="left" if column in ("model", "method") else "right")
    for row in rows:
        width = f" width {row['width']}" if "width" in row else ""
        table.add_row(
            row["model"] + width, row["method"], "-" if row["stages"] is None else str(row["stages"]),
            str(row["microbatches"]), str(row["batch"]), f"{row['seconds']:.3f}",
            f"{row['ratio_median']:.3f} ({row['ratio_min']:.3f}-{row['ratio_max']:.3f})",
            f"{1000 * row['overhead_seconds']:.1f}", megabytes(row["moved_bytes"]), megabytes(row["peak_memory"]),
            megabytes(row["extra_memory"]), megabytes(row["predicted_memory"]),
        )  # fmt: skip
    Console(width=max(Console().width, 125)).print(table)


def _runtime(args: argparse.Namespace) -> int:
    from pipemare_exp.bench import runtime
    from pipemare_exp.errors import UserError

    if not 0.0 < args.seconds <= 1.0:
        raise UserError(f"--seconds {args.seconds}: above 0 and at most 1")
    found: dict[str, list[dict[str, Any]]] = {}
    if args.only != "compute":
        found["sleep"] = runtime.latency(args.stages, [1, 4, 16], args.seconds)
    if args.only != "sleep":
        models = args.model or ["digits_resnet"]
        found["compute"] = [
            row for model in models for row in runtime.compute(model, args.batch or 64, [1, 2], args.rounds, args.steps)
        ]
    if args.json:
        print(json.dumps(found, indent=2))
        return 0
    for what, rows in found.items():
        _show_runtime(what, rows, args)
    return 0


def _show_runtime(what: str, rows: list[dict[str, Any]], args: argparse.Namespace) -> None:
    from rich.console import Console
    from rich.table import Table

    def number(value: float | None) -> str:
        return "-" if value is None else f"{value:.3f}"

    title = (
        f"{args.stages} ranks, every operation {1000 * args.seconds:g} ms"
        if what == "sleep"
        else f"2 ranks of one thread, {args.rounds} rounds of {args.steps} steps; stages cut to take equally long"
    )
    table = Table(title=title)
    columns = ("N", "method", "steps/s", "utilization", "by the model", "over our GPipe")
    for column in columns if what == "sleep" else (*columns, "min-max", "model", "batch"):
        table.add_column(column, justify="right")
    for row in rows:
        over = number(row.get("over_gpipe"))
        if "over_gpipe_model" in row:
            over += f" (model {row['over_gpipe_model']:.3f})"
        cells = [str(row["microbatches"]), row["method"], number(row["steps_per_second"]), number(row["utilization"]),
                 number(row["utilization_model"]), over]  # fmt: skip
        if what == "compute":
            cells += [f"{row['over_gpipe_min']:.3f}-{row['over_gpipe_max']:.3f}", row["model"], str(row["batch"])]
        table.add_row(*cells)
    Console().print(table)
