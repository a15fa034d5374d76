"""`docstrings`: the documentation inside NumPy, SciPy, pandas and scikit-learn as installed, 13 MB of English.

The language modelling task that needs no download. The files are parsed, never imported, in the order of their names;
a function's docstring stands under a line such as `def linspace(start, stop, num):`. A module is in one split whole,
and a docstring that occurs again is left out, so that none is in two splits.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import inspect
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

from pipemare_exp.data.cache import sha256
from pipemare_exp.data.running_text import RunningText, Source, prepare, told
from pipemare_exp.errors import UserError

PACKAGES = {"numpy": "numpy", "scipy": "scipy", "pandas": "pandas", "sklearn": "scikit-learn"}
"""Name of import -> name of distribution."""

PARTS = 40
"""One module in so many goes to test, one to valid."""

Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def describe() -> RunningText:
    """What `pipemare data list` says of the docstrings."""
    return RunningText(
        "docstrings",
        "docstrings of NumPy, SciPy, pandas and scikit-learn, 13 MB of technical English (in the packages)",
        prepare=_prepare,
        source=source,
    )


def _prepare(root: Path) -> str:
    return told(prepare("docstrings", source(root), root))


def source(root: Path) -> Source:
    """The docstrings as a text, identified by the packages' versions and this file."""
    fingerprint = {"generator": sha256(Path(__file__))}
    for name, distribution in PACKAGES.items():
        if importlib.util.find_spec(name) is None:
            raise UserError(
                f"{name} is not installed, and the text of the task docstrings is in it; install what "
                "requirements.lock names, or take another task"
            )
        fingerprint[distribution] = version(distribution)
    return Source(parts, fingerprint)


def parts() -> Iterator[tuple[str, str]]:
    """(split, headings and docstrings of one module) of all modules that have any."""
    from tqdm import tqdm

    seen: set[str] = set()
    for path, module in tqdm(list(_modules()), desc="docstrings", unit="file", leave=False, disable=None):
        entries = list(of_module(path.read_bytes(), module, seen))
        if entries:
            yield split_of(module), "".join(entries)


def _modules() -> Iterator[tuple[Path, str]]:
    """Every file of the packages with the name of its module, in order."""
    for name in PACKAGES:
        found = importlib.util.find_spec(name)
        assert found is not None and found.submodule_search_locations
        folder = Path(found.submodule_search_locations[0])
        paths = {path.relative_to(folder.parent).with_suffix("").parts: path for path in folder.rglob("*.py")}
        for names in sorted(paths):
            yield paths[names], ".".join(names)


def split_of(module: str) -> str:
    """The split of a module, by its name alone: the same however many others there are."""
    part = int.from_bytes(hashlib.sha256(module.encode()).digest()[:8], "big") % PARTS
    return {0: "test", 1: "valid"}.get(part, "train")


def of_module(code: bytes, module: str, seen: set[str]) -> Iterator[str]:
    """Heading and docstring of the module and of all in it, in the order of the file; `seen` are left out, and grow."""
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError) as error:
        raise UserError(f"module {module} of the task docstrings cannot be parsed: {error}; reinstall it") from error
    for heading, docstring in _documented(tree, f"module {module}:"):
        if docstring not in seen:
            seen.add(docstring)
            yield f"{heading}\n{docstring}\n\n\n"


def _documented(node: ast.AST, heading: str) -> Iterator[tuple[str, str]]:
    raw = ast.get_docstring(node, clean=False) if isinstance(node, Documented) else None
    text = inspect.cleandoc(raw).encode("utf-8", "ignore").decode("utf-8") if raw else ""
    if text:
        yield heading, text
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield from _documented(child, _heading(child))


def _heading(node: ast.stmt) -> str:
    """`class Name:`, or `def name(arguments):` with the names of the arguments."""
    if isinstance(node, ast.ClassDef):
        return f"class {node.name}:"
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return ""
    given = node.args
    names = [argument.arg for argument in (*given.posonlyargs, *given.args)]
    names += [f"*{given.vararg.arg}"] if given.vararg else []
    names += [argument.arg for argument in given.kwonlyargs]
    names += [f"**{given.kwarg.arg}"] if given.kwarg else []
    return f"def {node.name}({', '.join(names)}):"
