"""Does docs/library.md run as it stands, and does the package give its names without importing torch?"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import pipemare_exp
from tests.experiment.tiny_training import TINY, run_once

PAGE = Path(__file__).resolve().parents[1] / "docs" / "library.md"
PROGRAM, NOTEBOOK = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.S)


def test_the_program_trains_and_goes_on_from_its_checkpoint_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    program = ast.parse(PROGRAM)
    place = next(i for i, line in enumerate(program.body) if "load_state_dict" in ast.unparse(line))
    first, rest = (ast.Module(body, []) for body in (program.body[:place], program.body[place:]))
    names: dict[str, Any] = {}
    exec(compile(first, str(PAGE), "exec"), names)
    assert names["accuracy"] > 0.95
    weights = names["emulator"].flat_weights()
    assert len(weights) == 3 and names["emulator"].version == names["steps"]
    exec(compile(rest, str(PAGE), "exec"), names)
    assert all(torch.equal(a, b) for a, b in zip(weights, names["emulator"].flat_weights(), strict=True))


def test_the_program_fits_in_some_thirty_lines() -> None:
    assert len([line for line in PROGRAM.splitlines() if line.strip()]) <= 36


def test_the_notebook_s_lines_run(tmp_path: Path) -> None:
    done, _ = run_once([*TINY, "method=gpipe", "max_steps=1"], tmp_path)
    names: dict[str, Any] = {"name": done.run.path}
    exec(compile(NOTEBOOK, str(PAGE), "exec"), names)
    assert names["curve"] == [(1, done.summary["last"])] and names["result"] == done.summary
    assert not names["model"].training


def test_the_names_are_there_and_torch_is_imported_with_the_first_that_needs_it() -> None:
    assert all(getattr(pipemare_exp, name) is not None for name in pipemare_exp.__all__)
    assert set(pipemare_exp.__all__) <= set(dir(pipemare_exp))
    with pytest.raises(AttributeError, match="no attribute 'Emulater'"):
        _ = pipemare_exp.Emulater  # type: ignore[attr-defined]
    code = (
        "import sys; from pipemare_exp import UserError, cli; cli.main(['--help']); assert 'torch' not in sys.modules; "
        "from pipemare_exp import Emulator; assert 'torch' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_every_name_of_the_package_is_on_the_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert [name for name in pipemare_exp.__all__ if name not in text and name != "UserError"] == []
