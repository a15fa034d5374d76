"""`pipemare gpu`: checks, benches and trainings for a GPU machine that has torch and little else."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from pipemare_exp.arguments import real, whole
from pipemare_exp.errors import UserError
from pipemare_exp.settings import LARGEST, MOST_PARTS

HELP = "Check, time and train on a GPU machine without a network; see docs/performance-gpu.md."

EXAMPLES = """examples:
  pipemare gpu prepare cells                        here: the paper's CIFAR-10 cells, composed with Hydra
  python -m pipemare_exp.gpu_check equality         there (torch, torchvision and numpy are enough): CPU against GPU
  python -m pipemare_exp.gpu_check graphs           CUDA graphs against eager steps, bit for bit
  python -m pipemare_exp.gpu_check bench            eager against graphs, seconds an epoch
  python -m pipemare_exp.gpu_check train cells/*.json --data DIR --runs DIR --minutes 9
                                                    a piece of them; again to go on (exit code 130: not through)
"""
SIZES = [8, 16]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    prepare = actions.add_parser("prepare", help="write the trainings as JSON files (needs Hydra)")
    prepare.add_argument("out", metavar="DIR", help="folder of the cells, made if need be")
    prepare.add_argument("--task", default="cifar10", help="cifar10 (default), or another image task")
    prepare.add_argument("--method", action="append", help="a method's file (may be repeated); default: five")
    prepare.add_argument("--scale", default="paper", help="a recipe's scale (default: paper)")
    prepare.add_argument("--seeds", type=whole(high=MOST_PARTS), default=1, help="how many seeds, from 0 (default 1)")
    prepare.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a further setting")

    equality = actions.add_parser("equality", help="the same training on CPU and GPU")
    graphs = actions.add_parser("graphs", help="CUDA graphs against eager steps, bit for bit")
    for action in (equality, graphs):
        action.add_argument("--quick", action="store_true", help="little of it, to try the script itself")
    bench = actions.add_parser("bench", help="time a step and an epoch")
    bench.add_argument("--model", default="resnet50")
    bench.add_argument("--method", action="append", help="gpipe, t1+t2, ... (may be repeated); default: these two")
    bench.add_argument("--size", action="append", type=whole(), help="images in a microbatch; default: 8 and 16")
    bench.add_argument("--precision", action="append", help="fp32, tf32, bf16 (may be repeated); default: all")
    bench.add_argument("--steps", type=whole(), default=20, help="steps that count (default 20)")
    bench.add_argument("--cell", help="also time an epoch of this cell, on real data")
    bench.add_argument("--epoch-steps", type=whole(), metavar="K", help="time only the first K steps of that epoch")
    train = actions.add_parser("train", help="train cells for some minutes; again to go on")
    train.add_argument("cells", nargs="+", metavar="CELL", help="files that `prepare` wrote")
    train.add_argument("--runs", metavar="DIR", help="folder of runs (default: PIPEMARE_RUNS, else results/runs)")
    train.add_argument(
        "--minutes", type=real(0.0, LARGEST, more=True), default=9.0, help="length of the piece (default 9)"
    )
    for action in (bench, train):
        action.add_argument("--data", metavar="DIR", help="folder of prepared data (default: PIPEMARE_DATA)")
    for action in (equality, graphs, bench, train):
        action.add_argument(
            "--device", choices=("cpu", "cuda"), help="cpu: try the script itself where there is no GPU"
        )
        action.add_argument("--out", metavar="FILE", help="write what was found, with machine and versions, as JSON")


def run(args: argparse.Namespace) -> int:
    if args.action == "prepare":
        return _prepare(args)
    if args.action == "train":
        return _train(args)
    from pipemare_exp.experiment.training.assemble import choose_device
    from pipemare_exp.gpu_check import captured, equality

    device = choose_device(args.device or "cuda")
    if args.action == "bench":
        return _bench(args, device)
    if args.action == "equality":
        rows = equality.check(device, args.quick)
    else:
        rows = captured.check(device, args.quick)
    _write(args, {args.action: rows})
    failed = [row["check"] for row in rows if not row["passed"]]
    said = f"; failed: {'; '.join(failed)}" if failed else ""
    print(f"{len(rows) - len(failed)} of {len(rows)} checks passed{said}")
    return 1 if failed else 0


def _prepare(args: argparse.Namespace) -> int:
    from pipemare_exp.gpu_check import cells

    methods = args.method or cells.METHODS
    for path in cells.prepare(Path(args.out), args.task, methods, args.scale, range(args.seeds), args.set):
        print(path)
    return 0


def _train(args: argparse.Namespace) -> int:
    from pipemare_exp.gpu_check import cells

    if not args.minutes * 60.0 > cells.SAVING:
        raise UserError(f"--minutes {args.minutes}: more than {cells.SAVING:.0f} s, kept for the last save, are needed")
    through, rows = cells.train(
        [Path(cell) for cell in args.cells], runs=args.runs, minutes=args.minutes, data=args.data, device=args.device
    )
    _write(args, {"train": rows})
    if any(row["outcome"] == "failed" for row in rows):
        return 1
    return 0 if through else 130


def _bench(args: argparse.Namespace, device: Any) -> int:
    from pipemare_exp import models
    from pipemare_exp.errors import suggest
    from pipemare_exp.gpu_check import cases, cells, speed
    from pipemare_exp.pipeline.weights import precision

    methods, precisions = args.method or ["gpipe", "t1+t2"], args.precision or list(precision.CHOICES)
    fitting = models.taking("images", (3, 32, 32))
    for what, given, known in (
        ("model", [args.model], fitting),
        ("method", methods, cases.METHODS),
        ("precision", precisions, precision.CHOICES),
    ):
        for name in given:
            if name not in known:
                raise UserError(f"--{what} {name}: known are {', '.join(known)}{suggest(name, known)}")
    found: dict[str, Any] = {
        "steps": speed.table(device, args.model, methods, args.size or SIZES, precisions, args.steps)
    }
    if args.cell:
        cfg, _ = cells.read(Path(args.cell))
        found["epoch"] = speed.epoch(cells.here(cfg, args.data, args.device), args.epoch_steps)
    _write(args, found)
    return 0


def _write(args: argparse.Namespace, found: dict[str, Any]) -> None:
    if not args.out:
        return
    from pipemare_exp.experiment.runs import provenance
    from pipemare_exp.experiment.runs.writing import write_json

    commit, dirty = provenance.commit()
    made = {"machine": provenance.machine(), "versions": provenance.versions(), "commit": commit, "dirty": dirty}
    path = Path(args.out)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {**made, **json.loads(json.dumps(found))})
