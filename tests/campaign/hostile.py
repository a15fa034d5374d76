"""Content from a stranger: pickles, YAML tags and bombs, JSON of other types, names and links that lead elsewhere.

Nothing of it may run, be written outside the folders that a command was given, or reach a terminal or a page as code.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from pipemare_exp.experiment.runs import checkpoint
from tests.campaign.attempt import Outcome, judge
from tests.campaign.processes import Servant
from tests.campaign.trainings import CASES, Undisturbed

WEIGHT = 3
BOUND = 60.0
MARKUP = "<script>alert(1)</script><img src=x onerror=alert(2)>"
CODES = (0, 1, 2)


class Bench(Undisturbed):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.run("gpipe")
        self.servant = Servant(lines=100)

    def close(self) -> None:
        self.servant.close()


def prepare(folder: Path) -> Bench:
    return Bench(folder / "undisturbed")


class Evil:
    """Pickled, it leaves a file when it is loaded."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> Any:
        return os.system, (f"touch '{self.canary}'",)


def attempt(bench: Bench, random: Random, folder: Path) -> Outcome:
    """One hostile run folder or data set, one command over it."""
    whole, inside, outside = bench.run("gpipe"), folder / "inside", folder / "canary"
    run = inside / "runs" / whole.name
    shutil.copytree(whole.path, run)
    (inside / "out").mkdir()
    name = random.choices(list(TRICKS), [4 if one == "types" else 1 for one in TRICKS])[0]
    how = TRICKS[name](run, outside, random)
    line = _line(name, inside, random)
    before = set(folder.iterdir())
    done = bench.servant.run(line, BOUND, cwd=inside)
    outcome = judge(f"{how}: pipemare {' '.join(line)}", done, CODES)
    if outside.exists() or set(folder.iterdir()) != before:
        return Outcome(outcome.what, "silent", f"something was executed or written outside\n{outcome.said}")
    if "\x1b" in done.out + done.err:
        return Outcome(outcome.what, "silent", f"an escape sequence was printed: {(done.out + done.err)[-500:]!r}")
    pages = [
        page.name
        for page in (inside / "out").glob("*.html")
        if MARKUP[:12] in page.read_text() or "<img src=x" in page.read_text()
    ]
    return Outcome(outcome.what, "silent", f"markup in {pages}") if pages else outcome


def _line(name: str, inside: Path, random: Random) -> tuple[str, ...]:
    runs = ("--runs", str(inside / "runs"))
    run = next(path.name for path in (inside / "runs").iterdir())
    if name == "npz":
        return (
            "train",
            "task=cifar10",
            "method=gpipe",
            "scale=laptop",
            f"data.root={inside}/runs/{run}",
            "tracking=none",
            *runs,
        )
    if name == "tar":
        return ("data", "prepare", random.choice(("cifar10", "iwslt14")), "--data", f"{inside}/runs/{run}")
    over = [("eval", run, *runs), ("train", *CASES["gpipe"], *runs)]
    if name in ("pickle", "raw pickle"):
        return random.choice(over)
    return random.choice((
        *over, ("runs", *runs), ("runs", "--json", *runs), ("compare", "digits", *runs), ("figures", "--list", *runs),
        ("figures", "--rows", str(inside / "out"), *runs), ("timeline", run, *runs), ("translate", run, *runs),
        ("report", "table2_digits", *runs, "--out", str(inside / "out" / "page.html")),
        ("track", *runs, "--uri", f"sqlite:///{inside}/out/mlflow.db"), ("sweep", "ablation_digits", "--dry-run",
        *runs),
    ))  # fmt: skip


def _pickle(run: Path, canary: Path, random: Random) -> str:
    (run / "result.json").unlink()
    checkpoint.write(run / "checkpoints" / "last.pt", {"step": 3, "model": Evil(canary)})  # with a digest that is right
    return "a checkpoint with code in its pickle and a digest that is right"


def _raw_pickle(run: Path, canary: Path, random: Random) -> str:
    (run / "result.json").unlink()
    (run / "checkpoints" / "last.pt").write_bytes(pickle.dumps(Evil(canary)))
    return "a plain pickle in place of a checkpoint"


def _yaml_tag(run: Path, canary: Path, random: Random) -> str:
    text = random.choice((f'!!python/object/apply:os.system ["touch {canary}"]',
    f"a: !!python/object/new:os.system ['touch {canary}']",
                          "!!python/name:os.system", "!!binary x", "!!timestamp 1", "!!set {a, b}",
                          "!!omap [a: 1]"))  # fmt: skip
    (run / "config.yaml").write_text(random.choice(("", "seed: ")) + text + "\n")
    return f"config.yaml with {text[:30]}"


def _yaml_bomb(run: Path, canary: Path, random: Random) -> str:
    levels = [f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 9) if k else 'x'}]" for k in range(random.randint(6, 12))]
    (run / "config.yaml").write_text("\n".join(levels) + "\n")
    return "config.yaml that refers to itself"


def _npz(run: Path, canary: Path, random: Random) -> str:
    array = np.array([Evil(canary)], dtype=object)
    np.savez(run / "cifar10.npz", x_train=array, y_train=array, x_test=array, y_test=array)
    return "cifar10.npz with pickles"


def _tar(run: Path, canary: Path, random: Random) -> str:
    for name in ("cifar-10-python.tar.gz", "de-en.tgz"):
        with tarfile.open(run / name, "w:gz") as archive:
            for member in (
                "../../../canary",
                str(canary),
                "cifar-10-batches-py/data_batch_1",
                "de-en/train.tags.de-en.de",
            ):
                data = pickle.dumps(Evil(canary))
                info = tarfile.TarInfo(member)
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    return "an archive with names that lead elsewhere and pickles"


def _name(run: Path, canary: Path, random: Random) -> str:
    name = random.choice(("\x1b[31mred\x1b]0;title\x07", "<script>alert(1)<", "[bold]x[/bold]", "a\nb", "é" * 80,
    "$(touch canary)", "-rf",
                          "a'b\"c", "%s%n", "\u202egnp.exe", "x" * 255, "nan", "{0}", "\udcff\udcfe"))  # fmt: skip
    run.rename(run.parent / name)
    return f"a run named {name!r}"


def _texts(run: Path, canary: Path, random: Random) -> str:
    text = random.choice((MARKUP, "\x1b[2J\x1b]0;x\x07", "[red]x[/red]", "${oc.env:HOME}", "{{7*7}}",
    "'; DROP TABLE runs; --", "../../../canary",
                          str(canary), "=cmd|' /C calc'!A0", "]]>", "\u2028", "x" * 100_000))  # fmt: skip
    file = random.choice(("config.yaml", "meta.json", "result.json", "overrides.json", "status.json"))
    changed = _replaced((run / file).read_text(), file, lambda old: text if isinstance(old, str) else old, random, 0.3)
    (run / file).write_text(changed)
    return f"{file} with {text[:30]!r}"


def _types(run: Path, canary: Path, random: Random) -> str:
    file = random.choice(("config.yaml", "meta.json", "result.json", "overrides.json", "status.json", "metrics.jsonl"))
    value = random.choice(
        (
            None,
            True,
            -1,
            10**400,
            1e308,
            float("nan"),
            float("inf"),
            "x",
            "",
            [],
            {},
            [[]],
            {"a": []},
            "1" * 400,
            [None],
        )
    )
    text = (run / file).read_text()
    (run / file).write_text(_replaced(text, file, lambda old: value, random, 1 / max(text.count("\n"), 1)))
    if file != "result.json" and random.random() < 0.5:
        (run / "result.json").unlink()
    return f"{file} with {str(value)[:20]!r} somewhere"


def _replaced(text: str, file: str, change: Callable[[Any], Any], random: Random, share: float) -> str:
    """The file's text with some of its values changed; YAML is written as JSON, which it includes."""
    import yaml

    def walk(value: Any) -> Any:
        if random.random() < share:
            return change(value)
        if isinstance(value, dict):
            return {key: walk(item) for key, item in value.items()}
        return [walk(item) for item in value] if isinstance(value, list) else value

    if file == "metrics.jsonl":
        return "".join(json.dumps(walk(json.loads(line))) + "\n" for line in text.splitlines())
    return json.dumps(walk(yaml.safe_load(text))) + "\n"


def _device(run: Path, canary: Path, random: Random) -> str:
    path = random.choice([path for path in sorted(run.rglob("*")) if path.is_file()])
    path.unlink()
    kind = random.choice(("fifo", "/dev/zero", "/dev/full", "/dev/null", "/proc/self/mem", "/etc/passwd", ".."))
    if kind == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to(kind)
    return f"{path.name} is {kind}"


def _experiment(run: Path, canary: Path, random: Random) -> str:
    text = (run / "config.yaml").read_text()
    name = random.choice(
        ("../../../canary", str(canary), "..", "a/../../../../canary", "x\x00y", "\x1b[31m", MARKUP, "x" * 5000)
    )
    uri = random.choice(
        ("null", json.dumps(f"sqlite:///{canary}"), json.dumps(f"file://{canary}"), '"http://127.0.0.1:9"')
    )
    head, _, _ = text.partition("tracking:")
    (run / "config.yaml").write_text(f"{head}tracking: {{name: mlflow, uri: {uri}, experiment: {json.dumps(name)}}}\n")
    return f"an experiment named {name[:30]!r} in {uri}"


def _runtime(run: Path, canary: Path, random: Random) -> str:
    value = random.choice(
        ("[1]", "{}", "x", '{"method": 1, "ranks": [1]}', "[" * 50_000, "", '{"ranks": {}}', "\x1b[31m")
    )
    for name in ("runtime.json", "trace.json"):
        (run / name).write_text(value)
    return f"runtime.json with {value[:20]!r}"


TRICKS: dict[str, Callable[[Path, Path, Random], str]] = {
    "pickle": _pickle, "raw pickle": _raw_pickle, "YAML tag": _yaml_tag, "YAML bomb": _yaml_bomb, "npz": _npz,
    "tar": _tar,
    "name": _name, "texts": _texts, "types": _types, "device": _device, "experiment": _experiment, "runtime": _runtime,
}  # fmt: skip
