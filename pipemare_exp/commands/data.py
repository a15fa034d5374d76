"""`pipemare data`: which data sets there are, where each is expected, and how to get it there."""

from __future__ import annotations

import argparse
import json

from pipemare_exp.data.cache import data_root
from pipemare_exp.environment import DATA

HELP = "list the data sets, or prepare one"

EXAMPLES = """\
examples:
  pipemare data list                          what there is, where it is expected, and whether it is there
  pipemare data list --json                   the same for a script
  pipemare data prepare cifar10               download, check and convert into the data folder
  pipemare data prepare cifar10 --data DIR    into another folder
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `pipemare data`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EXAMPLES
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument(
        "--data", metavar="DIR", help=f"the data folder (default: ${DATA}, else the user's cache folder)"
    )
    listing = actions.add_parser("list", parents=[shared], help="every data set and whether it is there")
    listing.add_argument("--json", action="store_true", help="print JSON only")
    preparing = actions.add_parser("prepare", parents=[shared], help="make one data set's files")
    preparing.add_argument("name", metavar="NAME", help="cifar10, iwslt14, ... (see: pipemare data list)")


def run(args: argparse.Namespace) -> int:
    """List or prepare; 0 on success. Raises UserError with the remedy where a data set cannot be had."""
    from pipemare_exp.data import describe

    root = data_root(args.data)
    if args.action == "prepare":
        description = describe(args.name)
        if description.prepare is None:
            print(f"{args.name} needs no preparation: {description.what}")
        else:
            print(description.prepare(root))
        return 0
    rows = survey(args.data)
    if args.json:
        print(json.dumps({"root": str(root), "datasets": rows}, indent=2))
        return 0
    print(f"data folder: {root}")
    for row in rows:
        size = f", {row['bytes'] / 1e6:.1f} MB" if row["bytes"] else ""
        print(f"{row['name']:<9} {'ready' if row['present'] else 'missing'}{size}: {row['what']}")
        for path in row["missing"]:
            print(f"{'':<9} expected: {path}")
        if not row["present"]:
            print(f"{'':<9} {row['remedy']}")
    return 0


def survey(data: str | None = None) -> list[dict]:
    """One row per data set: name, what, files, present, missing (paths), bytes (size of the files there), remedy.

    `files` are those of the form that is there, where several serve; `remedy` is None where none is needed.
    """
    from pipemare_exp.data import DATASETS

    root = data_root(data)
    where = f" --data {data}" if data else ""
    rows = []
    for name, description in DATASETS.items():
        forms = [[root / file for file in files] for files in (description.files, *description.others)]
        paths = next((form for form in forms if all(path.is_file() for path in form)), forms[0])
        there = [path for path in paths if path.is_file()]
        present = len(there) == len(paths)
        remedy = description.by_hand or f'run "pipemare data prepare {name}{where}"'
        rows.append(
            {
                "name": name,
                "what": description.what,
                "files": [str(path) for path in paths],
                "present": present,
                "missing": [str(path) for path in paths if path not in there],
                "bytes": sum(path.stat().st_size for path in there),
                "remedy": None if present else remedy,
            }
        )
    return rows
