"""As many threads as there are free cores, unless somebody said how many."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pipemare_exp.environment import THREADS
from pipemare_exp.experiment.training import threads
from pipemare_exp.experiment.training.threads import Choice, Meter, choose, quota, settle, spent
from tests.experiment.tiny_training import TINY, run_once


@pytest.mark.parametrize(
    "cores, busy, allowed, chosen",
    [
        (8, 0.0, None, 8),
        (8, 0.4, None, 8),  # a shell, an editor
        (8, 2.6, None, 5),
        (2, 1.0, None, 1),
        (2, 2.0, None, 1),  # never none
        (2, 9.0, None, 1),
        (1, 0.0, None, 1),
        (64, 0.0, 4.0, 4),
        (64, 62.0, 4.0, 2),
        (8, 0.0, 2.5, 2),
        (8, 0.0, 0.5, 1),
    ],
)
def test_the_free_cores(cores: int, busy: float, allowed: float | None, chosen: int) -> None:
    assert choose(cores, busy, allowed) == chosen


def test_only_our_cores_and_only_what_is_not_idle_counts() -> None:
    lines = [
        "cpu  9 9 9 9 9 9 9 9 9 9",
        "cpu0 1 2 3 1000 1000 4 5 6 7 8",
        "cpu1 10 0 0 0 0 0 0 0",
        "cpu10 99 0 0 0 0 0 0 0",
    ]
    stat = "\n".join([*lines, "intr 5"])
    assert spent(stat, [0]) == 1 + 2 + 3 + 4 + 5 + 6
    assert spent(stat, [0, 1]) == 21 + 10


@pytest.mark.parametrize(
    "own, files, limit",
    [
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000", "a/cpu.max": "150000 100000", "cpu.max": "400000 100000"}, 1.5),
        ("0::/elsewhere\n", {"cpu.max": "200000 100000"}, 2.0),
        ("0::/\n", {"cpu.max": "max 100000"}, None),
        ("0::/\n", {}, None),
        ("3:memory:/x\n2:cpu,cpuacct:/x\n", {"cpu/x/cpu.cfs_quota_us": "500", "cpu/x/cpu.cfs_period_us": "1000"}, 0.5),
        ("2:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
    ],
)  # fmt: skip
def test_the_quota_of_the_control_groups(own: str, files: dict[str, str], limit: float | None, tmp_path: Path) -> None:
    (tmp_path / "own").write_text(own)
    for name, text in files.items():
        (tmp_path / "groups" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "groups" / name).write_text(text + "\n")
    assert quota(tmp_path / "groups", tmp_path / "own") == limit
    assert quota(tmp_path / "groups", tmp_path / "none") is None


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> Meter:
    """A machine of four cores, three of them busy, on which nobody has set a number of threads."""
    for name in THREADS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(threads, "quota", lambda: None)
    monkeypatch.setattr(threads, "TORCHS", 4)
    meter = Meter()
    meter.cores = [0, 1, 2, 3]
    monkeypatch.setattr(Meter, "busy", lambda self: 3.2)
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    return meter


def test_who_decides(free: Meter, monkeypatch: pytest.MonkeyPatch) -> None:
    assert settle(None, free, None) == Choice(1, "of 4 cores, 3 of them busy with other work")
    assert settle(None, free, 2) == Choice(2, "as before")
    assert settle(None, free, 16).count == 1  # begun on a larger machine
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert settle(None, free, 2) == Choice(torch.get_num_threads(), "OMP_NUM_THREADS")
    assert settle(3, free, 2) == Choice(3, "threads=")


def test_other_processes_are_seen_on_this_machine() -> None:
    meter = Meter()
    assert 0.0 <= meter.busy() <= len(meter.cores)


def test_a_run_says_and_records_its_threads_and_goes_on_with_as_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in THREADS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(threads, "_choice", lambda asked, meter, before: Choice(before or 1, "so it was decided"))
    done, said = run_once([*TINY, "method=gpipe", "max_steps=2"], tmp_path)
    assert "threads: 1 (so it was decided)" in said
    assert (done.run.meta["threads"], done.run.meta["threads_from"]) == (1, "so it was decided")
    (done.run.path / "result.json").unlink()
    asked = []
    monkeypatch.setattr(threads, "_choice", lambda asked_, meter, before: asked.append(before) or Choice(1, ""))
    again, _ = run_once([*TINY, "method=gpipe", "max_steps=2", "threads=2"], tmp_path)  # not part of the identity
    assert again.run.path == done.run.path and asked == [1]
