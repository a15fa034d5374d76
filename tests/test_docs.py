"""Do the pages still fit the code? Links, commands, paths, and the steps of docs/adding.md carried out in a copy."""

import argparse
import dataclasses
import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest
import yaml

from pipemare_exp import cli
from pipemare_exp.commands import plan, sweep
from pipemare_exp.errors import UserError
from pipemare_exp.experiment.config.identity import NOT_IDENTITY
from pipemare_exp.experiment.config.load import load

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
TOP = ("pipemare_exp", "configs", "sweeps", "tests", "paper_figures", "docs", ".ci")
TOP_FILES = ("Makefile", "pyproject.toml", "requirements.lock", "environment.yml", "README.md", "LICENSE")
SHELL = ("sh", "bash", "console")
PLACEHOLDER = re.compile(r"=(?:[A-Z]+\b|<|\$)|\.\.\.")

every_page = pytest.mark.parametrize("page", PAGES, ids=NAMES)


@cache
def parts(page: Path) -> tuple[str, tuple[tuple[str, str, str], ...]]:
    """The page's text without its fenced blocks, and the blocks as (language, contents, the line before)."""
    prose, blocks, inside, before = [], [], None, ""
    for line in page.read_text(encoding="utf-8").splitlines():
        if line.startswith("```"):
            if inside is None:
                inside = (line[3:].strip(), [])
            else:
                blocks.append((inside[0], "\n".join(inside[1]) + "\n", before))
                inside = None
        elif inside is not None:
            inside[1].append(line)
        else:
            prose.append(line)
            before = line if line.strip() else before
    assert inside is None, f"{page}: a fence is not closed"
    return "\n".join(prose), tuple(blocks)


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ +(.+)$", parts(page)[0], flags=re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@every_page
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", parts(page)[0]):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), target
        if anchor:
            assert anchor in anchors(there), target


def braces(text: str) -> list[str]:
    """Like the shell's: a{b,c} is ab and ac."""
    found = re.search(r"\{([^{}]*)\}", text)
    if not found:
        return [text]
    return [one for part in found[1].split(",") for one in braces(text[: found.start()] + part + text[found.end() :])]


def new_files(page: Path) -> set[str]:
    return set(re.findall(r"`([^`]+)` \(new\)", parts(page)[0]))


@every_page
def test_files_and_tests_that_are_named_exist(page):
    for code in re.findall(r"`([^`\n]+)`", parts(page)[0]):
        path, _, test = code.partition("::")
        if path in new_files(page) or " " in path or (path.split("/")[0] not in TOP and path not in TOP_FILES):
            continue
        for one in braces(path):
            found = list(ROOT.glob(one.rstrip("/")))
            assert found, code
            if test:
                assert re.search(rf"^ *def {re.escape(test)}\(", found[0].read_text(encoding="utf-8"), re.M), code


def commands(page: Path) -> list[list[str]]:
    """Every `pipemare` and `make` command of the shell blocks and of indented lines, as words."""
    prose, blocks = parts(page)
    found = []
    indented = "\n".join(re.findall(r"^ {4}((?:pipemare|make) .*)$", prose, flags=re.M))
    for text in [indented, *(text for language, text, _ in blocks if language in SHELL)]:
        for line in text.replace("\\\n", " ").splitlines():
            lexer = shlex.shlex(line.removeprefix("$ "), posix=True, punctuation_chars="|&;<>()")
            lexer.whitespace_split, lexer.commenters = True, "#"
            for separator, words in itertools.groupby(lexer, key=lambda word: set(word) <= set("|&;<>()")):
                words = list(words)
                while words and re.fullmatch(r"[A-Z_]+=.*|do|exec|srun", words[0]):
                    words.pop(0)
                if not separator and words and words[0] in ("pipemare", "make"):
                    found.append(words)
    return found


def parse(name: str, words: list[str]) -> argparse.Namespace:
    module = import_module(f"pipemare_exp.commands.{name}")
    parser = argparse.ArgumentParser(prog=f"pipemare {name}", exit_on_error=False)
    module.add_arguments(parser)
    intermixed = getattr(module, "INTERMIXED", False)
    return parser.parse_intermixed_args(words) if intermixed else parser.parse_args(words)


def check_names(command: str, args: argparse.Namespace) -> None:
    """The settings compose and are valid; figures and studies exist."""
    if command == "train":
        load([one for one in args.overrides if not PLACEHOLDER.search(one)])
    elif command == "figures":
        from paper_figures import registry

        registry.find([name for name in args.names if name.islower()])
    elif command == "sweep":
        names, own, extra = sweep._sort(args.words)
        sweep._cells([name for name in names if name.islower()], own, [one for one in extra if "=$" not in one])
        sweep._launcher(own)


@every_page
def test_commands_are_accepted(page):
    """Of the page that adds things, whose commands are run below, only the form is looked at here."""
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.M))
    for program, *words in commands(page):
        said = shlex.join([program, *words])
        if program == "make":
            assert {word for word in words if "=" not in word} <= targets, said
            continue
        if words[0] in ("--help", "--version"):
            continue
        assert words[0] in cli.available(), said
        if "--help" in words:
            continue
        try:
            args = parse(words[0], words[1:])
            if not new_files(page):
                check_names(words[0], args)
        except (SystemExit, argparse.ArgumentError, UserError) as error:
            pytest.fail(f"{said}: {error}")


@every_page
def test_commands_in_running_text_are_known(page):
    for name in re.findall(r"`pipemare ([a-z]+)", parts(page)[0]):
        assert name in cli.available(), name


def apply_diff(path: Path, text: str) -> None:
    """Replace, for each hunk (hunks are separated by `...`), the lines with ' ' or '-' by those with ' ' or '+'."""
    source = path.read_text(encoding="utf-8")
    for hunk in text.split("...\n"):
        lines = hunk.splitlines()
        assert all(line[:1] in (" ", "+", "-", "") for line in lines), hunk
        old = "".join(line[1:] + "\n" for line in lines if line[:1] != "+")
        new = "".join(line[1:] + "\n" for line in lines if line[:1] != "-")
        assert source.count(old) == 1, f"{path.name} has {source.count(old)} times:\n{old}"
        source = source.replace(old, new)
    path.write_text(source, encoding="utf-8")


def carry_out(page: Path, root: Path) -> None:
    """Make the page's new files and apply its changes, in order, to the project's copy at `root`."""
    for language, text, before in parts(page)[1]:
        named = re.match(r"`([^`]+)`( \(new\))?", before)
        if language in SHELL or named is None:
            continue
        path = root / named[1]
        if language == "diff":
            apply_diff(path, text)
        else:
            assert named[2] and not path.exists(), f"{before}: is it new?"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")


TRY = """
import contextlib, io, json, sys
from pipemare_exp import cli
for words in json.loads(sys.argv[1]):
    errors, output = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        code = cli.main(words)
    print(json.dumps([words, code, errors.getvalue(), output.getvalue()]))
"""


def keys(value) -> set[str]:
    """The names of all keys in a JSON value, at any depth."""
    if isinstance(value, list):
        return set().union(*map(keys, value))
    return set(value) | keys(list(value.values())) if isinstance(value, dict) else set()


def undocumented(names) -> set[str]:
    """Those of `names` that docs/output.md does not have in code, nor docs/methods.md as a method's label."""
    text = parts(ROOT / "docs" / "output.md")[0] + parts(ROOT / "docs" / "methods.md")[0]
    known = {word for code in re.findall(r"`([^`]+)`", text) for word in re.split(r"[^\w+]+", code)}
    return set(names) - known


def test_adding_works_when_followed_literally(tmp_path):
    """Every section's files and changes in a copy of the project, then the section's own commands there.

    What these write is what docs/output.md says.
    """
    page = ROOT / "docs" / "adding.md"
    for folder in ("pipemare_exp", "configs", "sweeps", "paper_figures"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    carry_out(page, tmp_path)
    tried = [words[1:] for words in commands(page) if words[0] == "pipemare"]
    assert len(tried) >= 9
    asked = [["runs", "--json"], ["compare", "digits", "--json"], [*tried[-2], "--json"], ["data", "list", "--json"]]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(tmp_path)}
    environment |= {"PIPEMARE_RUNS": str(tmp_path / "runs"), "PIPEMARE_DATA": str(tmp_path / "data")}
    done = subprocess.run(
        [sys.executable, "-c", TRY, json.dumps(tried + asked)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for words, code, errors, output in map(json.loads, done.stdout.splitlines()):
        assert code == 0, f"pipemare {shlex.join(words)}: {errors}{output}"
        if "--json" in words:
            found = json.loads(output)
            found = [{**row, "outcomes": None} for row in found] if words[0] == "compare" else found
            assert not undocumented(keys(found)), words
    runs = [path.parent for path in (tmp_path / "runs").glob("*/result.json")]
    results = [json.loads((run / "result.json").read_text()) for run in runs]
    assert len(results) == len([words for words in tried if words[0] == "train"])
    assert {result["outcome"] for result in results} == {"finished"} and {r["step"] for r in results} == {2}
    assert not undocumented(keys(results))
    for run in runs:
        assert not undocumented({path.name.split(".")[0] for path in run.rglob("*")})
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        meta = {**json.loads((run / "meta.json").read_text()), "versions": None, "notes": None, "data": None}
        found = undocumented(keys([rows, meta, json.loads((run / "status.json").read_text())]))
        assert found <= {"rmse"}  # the metric that the page itself adds


def test_output_names_the_columns_of_rows_and_the_keys_of_a_plan():
    from pipemare_exp.analysis.row import RunRow

    elsewhere = ("evals", "health", "staleness", "problem")
    assert not undocumented(one.name for one in dataclasses.fields(RunRow) if one.name not in elsewhere)
    assert not undocumented(keys(plan.make_plan(4, 2, steps=2, sizes=[1, 1, 1, 1])))


def test_output_says_what_does_not_name_a_run():
    text = parts(ROOT / "docs" / "output.md")[0]
    said = re.search(r"which do not change the\s+result: ([^.]*(?:\.\w+[^.]*)*)\. ", text)
    assert said and set(re.findall(r"`([^`]+)`", said[1])) == set(NOT_IDENTITY)


def test_every_page_is_in_the_index():
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    for page in (ROOT / "docs").glob("*.md"):
        assert page.name == "README.md" or f"({page.name})" in index, page.name


def test_settings_in_yaml_blocks_of_new_files_are_yaml():
    for page in PAGES:
        for language, text, _ in parts(page)[1]:
            if language == "yaml":
                assert isinstance(yaml.safe_load(text), dict), text
