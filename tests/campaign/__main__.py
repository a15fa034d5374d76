"""`python -m tests.campaign`: do to the project what machines, disks and people do, for as long as there is time.

A run is determined by its seed: attempt K of a family draws from its own random numbers, so that any attempt can be
repeated alone (`--only FAMILY --attempt K`). How many are made depends on the time. Exit code 1 where one ended badly.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.campaign import families
from tests.campaign.attempt import BAD, GOOD, Outcome, source
from tests.campaign.processes import warm


def main(argv: list[str] | None = None) -> int:
    """Make the attempts, print the figures and a command for each failure."""
    args = _arguments(argv)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("MPLBACKEND", "Agg")
    names = args.only.split(",") if args.only else list(families.NAMES)
    for name in names:
        if name not in families.NAMES:
            sys.exit(f"no family {name}; there are: {', '.join(families.NAMES)}")
    folder = Path(args.folder or tempfile.mkdtemp(prefix="campaign-"))
    folder.mkdir(parents=True, exist_ok=True)
    warm()
    figures: dict[str, dict[str, float]] = {}
    failures: list[dict[str, Any]] = []
    weights = {name: families.find(name).WEIGHT for name in names}
    for name in names:
        seconds = 3600 * args.hours * weights[name] / sum(weights.values())
        outcomes, spent = _attempts(name, families.find(name), args, folder / name, seconds)
        figures[name] = _count([each for _, each in outcomes], spent)
        failures += [
            {"family": name, "attempt": number, "what": one.what, "kind": one.kind, "said": one.said,
             "again": f"python -m tests.campaign --seed {args.seed} --only {name} --attempt {number}"}
            for number, one in outcomes if one.bad
        ]  # fmt: skip
    _show(figures, failures)
    if args.out:
        Path(args.out).write_text(
            json.dumps({"seed": args.seed, "hours": args.hours, "figures": figures, "failures": failures}, indent=2)
            + "\n"
        )
    if args.folder is None:
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if failures else 0


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.campaign", description=__doc__)
    parser.add_argument("--hours", type=float, default=0.1, help="time for all families together (default 0.1)")
    parser.add_argument("--seed", type=int, default=1, help="another seed makes other attempts (default 1)")
    parser.add_argument("--only", metavar="FAMILY,...", help=f"some of {', '.join(families.NAMES)}")
    parser.add_argument("--attempt", type=int, metavar="K", help="this one alone, of the family of --only")
    parser.add_argument("--most", type=int, metavar="K", help="no more than so many attempts of each family")
    parser.add_argument("--out", metavar="FILE", help="write figures and failures as JSON")
    parser.add_argument(
        "--folder", metavar="DIR", help="where to work, and leave the folders of failures (default: a new one)"
    )
    args = parser.parse_args(argv)
    if args.attempt is not None and (not args.only or "," in args.only):
        parser.error("--attempt needs --only with one family")
    return args


def _attempts(
    name: str, family: ModuleType, args: argparse.Namespace, folder: Path, seconds: float
) -> tuple[list[tuple[int, Outcome]], float]:
    """(number, outcome) of each attempt that began within `seconds`, not counting what all of them need."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    bench = family.prepare(folder)
    outcomes: list[tuple[int, Outcome]] = []
    began = time.monotonic()
    numbers = range(args.most or sys.maxsize) if args.attempt is None else [args.attempt]
    for number in numbers:
        if args.attempt is None and time.monotonic() - began > seconds:
            break
        place = folder / str(number)
        place.mkdir()
        outcome = family.attempt(bench, source(args.seed, name, number), place)
        outcomes.append((number, outcome))
        if outcome.bad or args.attempt is not None:
            print(f"{name} {number}: {outcome.kind}: {outcome.what}\n{_indented(outcome.said)}", flush=True)
        if not outcome.bad:
            shutil.rmtree(place, ignore_errors=True)
    bench.close()
    return outcomes, time.monotonic() - began


def _count(outcomes: list[Outcome], seconds: float) -> dict[str, float]:
    counts: dict[str, float] = {"attempts": len(outcomes), "disturbances": sum(one.tried for one in outcomes)}
    counts |= {kind: sum(one.kind == kind for one in outcomes) for kind in (*GOOD, *BAD)}
    return counts | {"seconds": round(seconds)}


def _show(figures: dict[str, dict[str, float]], failures: list[dict[str, Any]]) -> None:
    columns = ("attempts", "disturbances", *GOOD, *BAD, "seconds")
    print("| family | " + " | ".join(columns) + " |\n|---|" + "---:|" * len(columns))
    for name, counts in figures.items():
        print(f"| {name} | " + " | ".join(str(counts[column]) for column in columns) + " |")
    for one in failures:
        print(f"{one['kind']}: {one['what']}\n    {one['again']}")


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.strip().splitlines()[-25:])


if __name__ == "__main__":
    sys.exit(main())
