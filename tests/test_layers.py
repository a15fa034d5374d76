"""Imports go one way: from what is above to what is below, also inside functions, and never in a circle."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# From the lowest layer up. A module may import its own layer and those below; a name stands for all below it too.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("arguments", "disk", "errors", "environment", "leftovers", "paths", "seeding", "settings", "metrics", "tied"),
    ("pipeline",),
    ("methods", "models", "data", "optimizers"),
    ("tasks", "theory"),
    ("experiment",),
    ("analysis",),
    ("paper_figures",),
    ("report",),
    ("gpu_check", "bench", "completion"),
    ("commands",),
    ("cli", "__main__"),
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


def modules() -> dict[str, Path]:
    """Dotted name -> file, of everything that is installed; a folder stands for its `__init__`."""
    files = [path for folder in ("pipemare_exp", "paper_figures") for path in (ROOT / folder).rglob("*.py")]
    return {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in files}


MODULES = modules()


def imports(name: str) -> set[str]:
    """Our modules that `name` imports anywhere in its file, but for those that only type checkers see."""
    tree = ast.parse(MODULES[name].read_text(encoding="utf-8"))
    hidden = {id(node) for test in ast.walk(tree) if _for_types_only(test) for node in ast.walk(test)}
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import) and id(node) not in hidden:
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and id(node) not in hidden:
            assert node.level == 0, f"{name}: a relative import"
            # `from package import module` is the module's import, `from module import name` the module's.
            whole = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {one if one in MODULES else str(node.module) for one in whole}
    return (found & MODULES.keys()) - {name}


def _for_types_only(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def layer(name: str) -> str:
    """`pipeline` of `pipemare_exp.pipeline.schedule.orders`; a folder that is run is a program of its own."""
    return "__main__" if name.endswith(".__main__") else name.removeprefix("pipemare_exp.").split(".")[0]


GRAPH = {name: imports(name) for name in MODULES}


def test_every_module_has_a_layer() -> None:
    assert {layer(name) for name in MODULES} - {"pipemare_exp"} == LEVEL.keys()


@pytest.mark.parametrize("name", sorted(MODULES))
def test_nothing_imports_upwards(name: str) -> None:
    level = LEVEL.get(layer(name), len(LAYERS))
    assert [one for one in GRAPH[name] if LEVEL.get(layer(one), -1) > level] == []


def test_no_circle_of_modules() -> None:
    left = {name: set(below) for name, below in GRAPH.items()}
    while free := [name for name, below in left.items() if not below & left.keys()]:
        for name in free:
            del left[name]
    # What is left is on a circle or above one; show the circles alone.
    while above := [name for name in left if not any(name in below for below in left.values())]:
        for name in above:
            del left[name]
    assert left.keys() == set()
