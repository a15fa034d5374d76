"""`pipemare bench`: measures on this machine; nothing of it enters a test."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from functools import partial
from pathlib import Path
from typing import Any

from pipemare_exp.arguments import real, whole
from pipemare_exp.settings import MOST_PARTS

HELP = "measure what emulation costs, and what real pipelines reach"

EXAMPLES = """examples:
  pipemare bench emulator
  pipemare bench emulator --model resnet20 --method t1+t2 --threads 1 --out bench.json
  pipemare bench emulator --model gpt2 --pairs 3          124 M weights: 16 GB of memory, minutes
  pipemare bench emulator --processes 8 --pairs 9         medians over fresh processes: differences below 2 %
  pipemare bench emulator --scaling                       its cost by stages, microbatches and size of the model
  pipemare bench runtime                                  8 ranks that sleep, real computation on 2, memory on 4
  pipemare bench runtime --only sleep --stages 8 --seconds 0.05 --json
  pipemare bench runtime --only compute --model digits_resnet --rounds 3
  pipemare bench runtime --only memory --out results/bench/runtime.json     record it, with how it was made
  pipemare bench runtime --table results/bench/runtime.json                 what was recorded, as Markdown
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
    parser.add_argument(
        "--model", action="append", help="a model (may be repeated); default: all but gpt2, which needs 16 GB"
    )
    parser.add_argument("--method", action="append", help="a method's label (may be repeated); default: gpipe, t1+t2")
    parser.add_argument("--microbatches", type=whole(high=MOST_PARTS), default=8, help="N (default 8)")
    parser.add_argument("--batch", type=whole(), help="examples in a minibatch; default: the model's")
    parser.add_argument(
        "--pairs",
        type=whole(),
        default=10,
        help="rounds in which plain PyTorch and every method make a step (default 10)",
    )
    parser.add_argument("--threads", type=whole(high=MOST_PARTS), default=2, help="threads (default 2)")
    parser.add_argument("--json", action="store_true", help="print JSON only")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="record rows, command, commit and machine in FILE (runtime: beside the rows that it has)",
    )
    ours = parser.add_argument_group("emulator only")
    ours.add_argument("--scaling", action="store_true", help="vary stages, microbatches and width of a ResNet-50")
    ours.add_argument(
        "--processes",
        type=whole(high=MOST_PARTS),
        default=1,
        help="fresh processes whose medians are taken (default 1)",
    )
    ours.add_argument("--no-memory", action="store_true", help="leave out the peaks of memory (two steps each)")
    ours.add_argument(
        "--clock",
        choices=["wall", "cpu"],
        default="wall",
        help="cpu: the process's own time, for a busy machine; needs --threads 1",
    )
    only = parser.add_argument_group("runtime only")
    only.add_argument("--only", choices=["sleep", "compute", "memory"], help="one of its three measurements")
    only.add_argument("--stages", type=whole(high=1000), default=8, help="sleep: stages, each a process (default 8)")
    only.add_argument(
        "--seconds",
        type=real(0.0, 1.0, more=True),
        default=0.05,
        help="sleep: what every operation takes (default 0.05)",
    )
    only.add_argument(
        "--rounds", type=whole(), default=3, help="compute: times that all methods take turns (default 3)"
    )
    only.add_argument("--steps", type=whole(), default=20, help="compute: steps of each measurement (default 20)")
    only.add_argument("--ranks", type=whole(high=1000), default=4, help="memory: ranks of one stage each (default 4)")
    only.add_argument("--table", type=Path, metavar="FILE", help="measure nothing; print FILE's tables as Markdown")


def run(args: argparse.Namespace) -> int:
    if args.what == "runtime":
        return _runtime(args)
    return _emulator(args)


def _emulator(args: argparse.Namespace) -> int:
    from pipemare_exp.bench import emulator, scaling, workloads
    from pipemare_exp.errors import UserError, suggest
    from pipemare_exp.experiment.runs import provenance

    wanted = args.method or (["t1+t2"] if args.scaling else ["gpipe", "t1+t2"])
    for method in wanted:
        if method not in workloads.METHODS:
            known = ", ".join(workloads.METHODS)
            raise UserError(f"--method {method}: known are {known}{suggest(method, workloads.METHODS)}")
    for model in args.model or []:
        workloads.check(model)
    if args.scaling and (args.model or args.batch or len(wanted) > 1 or args.processes > 1):
        raise UserError("--scaling has its own models and minibatches and takes one --method; leave out the others")
    if args.clock == "cpu" and args.threads != 1:
        raise UserError(f"--clock cpu with --threads {args.threads}: it adds up the threads' time; take --threads 1")
    commit, dirty = provenance.commit()
    rows: list[dict[str, Any]] = []
    if args.scaling:
        rows = scaling.scaling(wanted[0], args.pairs, args.threads, args.clock)
    for model in [] if args.scaling else args.model or workloads.SMALL:
        options = {"batch": args.batch, "pairs": args.pairs, "threads": args.threads, "clock": args.clock}
        measure = partial(emulator.in_processes, args.processes) if args.processes > 1 else emulator.compare
        rows += measure(model, wanted, args.microbatches, memory=not args.no_memory, **options)
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
            args.out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
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

    several = f" in each of {args.processes} processes" if args.processes > 1 else ""
    table = Table(
        title=f"emulation over plain PyTorch, {args.pairs} rounds{several}, threads: {args.threads}, {args.clock} time"
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
    from pipemare_exp import models
    from pipemare_exp.bench import record, runtime, runtime_compute, runtime_memory
    from pipemare_exp.errors import UserError

    if args.table is not None:
        try:
            print(record.tables(json.loads(args.table.read_text(encoding="utf-8"))), end="")
        except (OSError, ValueError) as error:
            raise UserError(f"--table {args.table}: {error}; give a file that --out wrote") from error
        return 0
    for model in args.model or []:
        if models.images(model) is None:
            raise UserError(f"--model {model}: it takes no images, and the ranks are timed with images")
    found: dict[str, list[dict[str, Any]]] = {}
    if args.only in (None, "sleep"):
        found["sleep"] = runtime.latency(args.stages, [1, 4, 16], args.seconds)
    if args.only in (None, "compute"):
        for model in args.model or ["digits_resnet"]:
            rows = runtime_compute.compute(model, args.batch or 64, [1, 2], args.rounds, args.steps)
            found[f"compute {model}"] = rows
    if args.only in (None, "memory"):
        found["memory"] = [
            row for model in args.model or ["resnet18"] for row in runtime_memory.memory(model, args.ranks, [1, 4])
        ]
    if args.out is not None:
        record.add(args.out, found, sys.argv[1:])
    if args.json:
        print(json.dumps(found, indent=2))
        return 0
    for what, rows in found.items():
        (_show_memory if what == "memory" else _show_runtime)(what, rows, args)
    return 0


def _show_runtime(what: str, rows: list[dict[str, Any]], args: argparse.Namespace) -> None:
    from rich.console import Console
    from rich.table import Table

    def number(value: float | None) -> str:
        return "-" if value is None else f"{value:.3f}"

    title = (
        f"{args.stages} ranks, every operation {1000 * args.seconds:g} ms"
        if what == "sleep"
        else f"{rows[0]['model']}, batch {rows[0]['batch']}, 2 ranks of one thread, {args.rounds} rounds of "
        f"{args.steps} steps"
    )
    table = Table(title=title)
    for column in ("N", "method", "steps/s", "busy", "(model)", "over our GPipe", "(model)"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        over = number(row.get("over_gpipe"))
        if "over_gpipe_min" in row:
            over += f" ({row['over_gpipe_min']:.2f}-{row['over_gpipe_max']:.2f})"
        table.add_row(
            str(row["microbatches"]), row["method"], number(row["steps_per_second"]), number(row["utilization"]),
            number(row["utilization_model"]), over, number(row.get("over_gpipe_model")),
        )  # fmt: skip
    Console().print(table)


def _show_memory(what: str, rows: list[dict[str, Any]], args: argparse.Namespace) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{args.ranks} ranks of one stage, MB; (model)")
    for column in ("N", "method", "rank", "weights", "past versions and copies", "T2's delta", "process over GPipe's"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            str(row["microbatches"]), row["method"], str(row["rank"]), f"{row['weights'] / 1e6:.2f}",
            f"{row['history'] / 1e6:.2f} ({row['history_model'] / 1e6:.2f})",
            f"{row['delta'] / 1e6:.2f} ({row['delta_model'] / 1e6:.2f})", f"{row['resident_over_gpipe'] / 1e6:.1f}",
        )  # fmt: skip
    Console().print(table)
