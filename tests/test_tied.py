"""A process ends with the one that started it, at whatever moment that one is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipemare_exp import tied
from pipemare_exp.environment import TORCHRUN

ROOT = Path(__file__).parents[1]
SETTING = {**os.environ, "PYTHONPATH": str(ROOT)}

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux's prctl")

STARTS = """
import subprocess, sys
from pipemare_exp import tied
child = subprocess.Popen(tied.command(*sys.argv[1:]))
print(child.pid, flush=True)
child.wait()
"""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def gone(pid: int, within: float = 20.0) -> bool:
    end = time.monotonic() + within
    while alive(pid) and time.monotonic() < end:
        time.sleep(0.02)
    return not alive(pid)


@pytest.mark.parametrize("delay", [0.0, 0.01, 0.03, 0.1, 0.5])
def test_a_tied_module_ends_with_its_starter_at_every_early_moment(delay: float) -> None:
    """What is started reads for ever; its starter is killed while it starts, imports, or reads."""
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTS, "http.server", "0", "--bind", "127.0.0.1"], env=SETTING, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert starter.stdout is not None
    child = int(starter.stdout.readline())
    time.sleep(delay)
    starter.kill()
    starter.wait()
    assert gone(child)


def test_a_module_whose_starter_was_gone_already_does_not_run(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pipemare_exp.tied", "999999999", "this"], env=SETTING, capture_output=True, text=True,
        timeout=60,
    )  # fmt: skip
    assert done.returncode == 1 and not done.stdout


def test_a_rank_ties_itself_before_anything_is_imported() -> None:
    """A rank whose torchrun is another process than the one that it was told of ends at once, and imports nothing."""
    code = (
        "import runpy, sys; sys.modules['pipemare_exp.cli'] = None; "
        "runpy.run_module('pipemare_exp', run_name='__main__')"
    )
    variables = {**SETTING, **dict.fromkeys(TORCHRUN, "0"), tied.STARTER: "999999999"}
    done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (1, "")
    variables[tied.STARTER] = str(os.getpid())
    done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, timeout=60)
    assert "ModuleNotFoundError" in done.stderr  # it is ours, and went on to the imports


def test_what_a_tied_module_starts_can_tie_itself(tmp_path: Path) -> None:
    """The middle process is killed: the innermost, which it started, ends too."""
    inner = tmp_path / "inner.py"
    inner.write_text(
        "from pipemare_exp.tied import end_with_starter\nend_with_starter()\nimport time\ntime.sleep(600)\n"
    )
    middle = tmp_path / "middle.py"
    middle.write_text(
        "import subprocess, sys\n"
        f"child = subprocess.Popen([sys.executable, {str(inner)!r}])\nprint(child.pid, flush=True)\nchild.wait()\n"
    )
    variables = {**SETTING, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    outer = subprocess.Popen(tied.command("middle"), env=variables, stdout=subprocess.PIPE, text=True)
    assert outer.stdout is not None
    child = int(outer.stdout.readline())
    time.sleep(0.2)
    os.kill(outer.pid, signal.SIGKILL)
    outer.wait()
    assert gone(child)
