"""Do the pages still fit the code? Links, commands, paths, and the steps of docs/adding.md carried out in a copy."""

import argparse
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
from pipemare_exp.experiment import compose, config

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
TOP = ("pipemare_exp", "configs", "sweeps", "tests", "paper_figures", "docs", ".ci")
TOP_FILES = ("Makefile", "pyproject.toml", "requirements.lock", "environment.yml", "README.md", "LICENSE")
SHELL = ("sh", "bash", "console")
PLACEHOLDER = re.compile(r"=(?:[A-Z]+\b|<)|\.\.\.")

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
    """Every `pipemare` and `make` command of the shell blocks, as words."""
    found = []
    for language, text, _ in parts(page)[1]:
        if language not in SHELL:
            continue
        for line in text.replace("\\\n", " ").splitlines():
            lexer = shlex.shlex(line.removeprefix("$ "), posix=True, punctuation_chars="|&;<>()")
            lexer.whitespace_split, lexer.commenters = True, "#"
            for separator, words in itertools.groupby(lexer, key=lambda word: set(word) <= set("|&;<>()")):
                words = list(words)
                while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
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


def check_overrides(overrides: list[str], added: set[str]) -> None:
    """They compose and are valid; those that belong to files that the page adds are looked at there."""
    whole = [one for one in overrides if not PLACEHOLDER.search(one)]
    choices = [one.split("=", 1) for one in whole if one.split("=", 1)[0] in compose.groups()]
    if not any(f"configs/{group}/{choice}.yaml" in added for group, choice in choices):
        config.load(whole)


@every_page
def test_commands_are_accepted(page):
    added = new_files(page)
    studies = {path.stem for path in (ROOT / "sweeps").glob("*.yaml")} | {Path(path).stem for path in added}
    tasks = "|".join(path.stem for path in (ROOT / "configs" / "task").glob("*.yaml"))
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
        except (SystemExit, argparse.ArgumentError) as error:
            pytest.fail(f"{said}: {error}")
        if words[0] == "train":
            check_overrides(args.overrides, added)
        elif words[0] == "figures":
            from paper_figures import registry

            registry.find([name for name in args.names if name.islower()])
        elif words[0] == "sweep":
            name = next(word for word in words[1:] if not word.startswith("-") and "=" not in word)
            assert name in studies or re.sub(rf"_({tasks})$", "", name) in studies or name.isupper(), said


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
    print(json.dumps([words, code, errors.getvalue()[-2000:], output.getvalue()[-2000:]]))
"""


def test_adding_works_when_followed_literally(tmp_path):
    """Every section's files and changes in a copy of the project, then the section's own commands there."""
    page = ROOT / "docs" / "adding.md"
    for folder in ("pipemare_exp", "configs", "sweeps", "paper_figures"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    carry_out(page, tmp_path)
    tried = [words[1:] for words in commands(page) if words[0] == "pipemare"]
    assert len(tried) >= 8
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(tmp_path)}
    environment |= {"PIPEMARE_RUNS": str(tmp_path / "runs"), "PIPEMARE_DATA": str(tmp_path / "data")}
    done = subprocess.run(
        [sys.executable, "-c", TRY, json.dumps(tried)], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for words, code, errors, output in map(json.loads, done.stdout.splitlines()):
        assert code == 0, f"pipemare {shlex.join(words)}: {errors}{output}"
    results = [json.loads(path.read_text()) for path in (tmp_path / "runs").glob("*/result.json")]
    trained = [words for words in tried if words[0] == "train"]
    assert len(results) == len(trained)
    assert {result["outcome"] for result in results} == {"finished"} and {r["step"] for r in results} == {2}


def test_settings_in_yaml_blocks_of_new_files_are_yaml():
    for page in PAGES:
        for language, text, _ in parts(page)[1]:
            if language == "yaml":
                assert isinstance(yaml.safe_load(text), dict), text
