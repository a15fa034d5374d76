"""What a killed process was making is removed by the next that makes it, and what is being made is left alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pipemare_exp.data.cache import atomic_write
from pipemare_exp.leftovers import work_folder

ROOT = Path(__file__).parents[1]

FOLDER = """
import sys
from pathlib import Path
from pipemare_exp.leftovers import work_folder
with work_folder(Path(sys.argv[1]), ".made.") as folder:
    (folder / "part").write_text("half")
    print(folder, flush=True)
    sys.stdin.read()
"""

FILE = """
import sys
from pathlib import Path
from pipemare_exp.data.cache import atomic_write
with atomic_write(Path(sys.argv[1]) / "file", "w") as file:
    file.write("half")
    print("begun", flush=True)
    sys.stdin.read()
"""


def killed(code: str, home: Path) -> list[str]:
    """Names in `home` while a process makes something, and after it was killed."""
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(home)], env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None and process.stdout.readline()
    with work_folder(home, ".made."), atomic_write(home / "file", "w") as file:
        file.write("another's")
        beside = [name for name in os.listdir(home) if name.startswith(".")]
    assert len(beside) == 3, "what another process is making was removed"
    (home / "file").unlink()
    process.send_signal(signal.SIGKILL)
    process.wait()
    return os.listdir(home)


@pytest.mark.parametrize("code", [FOLDER, FILE], ids=["folder", "file"])
def test_the_next_start_removes_what_a_killed_process_left(code: str, tmp_path: Path) -> None:
    assert len(killed(code, tmp_path)) == 1
    with work_folder(tmp_path, ".made."), atomic_write(tmp_path / "file", "w") as file:
        file.write("whole")
        assert len(os.listdir(tmp_path)) == 2
    assert os.listdir(tmp_path) == ["file"]


def test_a_folder_that_was_renamed_stays(tmp_path: Path) -> None:
    with work_folder(tmp_path, ".made.") as folder:
        os.rename(folder, tmp_path / "made")
    assert os.listdir(tmp_path) == ["made"]


def test_nothing_is_removed_where_locks_are_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    (tmp_path / ".made.old").mkdir()
    monkeypatch.setattr("fcntl.flock", unknown)
    with work_folder(tmp_path, ".made."):
        pass
    assert os.listdir(tmp_path) == [".made.old"]


def test_others_names_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / ".made").mkdir()
    (tmp_path / "made.1").write_text("")
    with work_folder(tmp_path, ".made."):
        pass
    assert sorted(os.listdir(tmp_path)) == [".made", "made.1"]
