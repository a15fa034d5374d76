"""Checkpoints on disk: rotation, damage, what may be in them, and how often they are written."""

from __future__ import annotations

import os
import random
import resource
from pathlib import Path

import pytest
import torch

from pipemare_exp.errors import UserError
from pipemare_exp.experiment.runs import checkpoint
from pipemare_exp.experiment.runs.checkpoint import Checkpoints, read, write
from pipemare_exp.experiment.runs.reading import Damaged


def state(step: int) -> dict:
    return {"step": step, "weights": [torch.full((1000,), float(step))], "rates": (0.1, None, True)}


def fail(text: str) -> None:
    raise AssertionError(f"nothing was to be said, but: {text}")


def test_a_state_comes_back_and_the_one_before_is_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.load(fail) is None
    for step in (1, 2, 3):
        checkpoints.save(state(step))
    loaded = checkpoints.load(fail)
    assert loaded is not None and loaded["step"] == 3 and loaded["rates"] == (0.1, None, True)
    assert torch.equal(loaded["weights"][0], state(3)["weights"][0])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["last.pt", "previous.pt"]


def test_more_can_be_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=3)
    for step in range(1, 7):
        checkpoints.save(state(step))
    steps = [torch.load(path, weights_only=True)["step"] for path in checkpoints.files]
    assert steps == [6, 5, 4, 3]
    assert len(list(tmp_path.iterdir())) == 4


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def flip_a_bit_of_a_weight(path: Path) -> None:
    data = bytearray(path.read_bytes())
    place = data.find(torch.full((4,), 2.0).numpy().tobytes())
    assert place > 0
    data[place + 1] ^= 1
    path.write_bytes(data)


def not_a_checkpoint(path: Path) -> None:
    path.write_bytes(b"hello")


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("damage", [truncate, empty, flip_a_bit_of_a_weight, not_a_checkpoint, a_folder])
def test_a_damaged_last_falls_back_to_the_one_before_and_says_so(tmp_path: Path, damage) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(state(1))
    checkpoints.save(state(2))
    damage(tmp_path / "last.pt")
    said: list[str] = []
    loaded = checkpoints.load(said.append)
    assert loaded is not None and loaded["step"] == 1
    assert len(said) == 1 and "last.pt" in said[0] and "damaged" in said[0]


def test_a_kill_between_the_two_renames_costs_nothing(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(state(1))
    os.replace(tmp_path / "last.pt", tmp_path / "previous.pt")
    loaded = checkpoints.load(fail)
    assert loaded is not None and loaded["step"] == 1


def test_when_none_is_readable_nothing_is_deleted_and_the_remedy_told(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(state(1))
    checkpoints.save(state(2))
    for path in checkpoints.files:
        truncate(path)
    with pytest.raises(UserError, match=r"last.pt.*previous.pt.*damaged.*move"):
        checkpoints.load(lambda text: None)
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("room", [0, 100, 3000])
def test_a_failed_write_leaves_the_last_one_and_no_part_of_the_new(tmp_path: Path, room: int) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(state(1))

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))  # writes beyond it fail as on a full disk
    try:
        with pytest.raises(OSError, match="too large"):
            checkpoints.save(state(2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [path.name for path in tmp_path.iterdir()] == ["last.pt"]
    loaded = checkpoints.load(fail)
    assert loaded is not None and loaded["step"] == 1


class Code:
    def __reduce__(self):
        return os.system, ("exit 1",)


def test_code_in_a_checkpoint_is_never_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    write(tmp_path / "last.pt", {"step": Code()})
    monkeypatch.setattr(os, "system", ran.append)
    with pytest.raises(Damaged, match="contents cannot be read"):
        read(tmp_path / "last.pt")
    assert ran == []


def test_no_flipped_bit_passes(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(state(1))
    checkpoints.save(state(2))
    whole = (tmp_path / "last.pt").read_bytes()
    drawn = random.Random(0)
    places = [drawn.randrange(8 * len(whole)) for _ in range(300)] + list(range(8 * len(whole) - 800, 8 * len(whole)))
    for place in places:
        data = bytearray(whole)
        data[place // 8] ^= 1 << place % 8
        (tmp_path / "last.pt").write_bytes(data)
        said: list[str] = []
        loaded = checkpoints.load(said.append)
        assert loaded is not None and loaded["step"] == 1 and "last.pt is damaged" in said[0], place


def test_a_damaged_checkpoint_never_takes_the_place_of_a_whole_one(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    for damage in (truncate, a_folder):
        checkpoints.save(state(1))
        checkpoints.save(state(2))
        damage(tmp_path / "last.pt")
        assert checkpoints.load(lambda text: None) is not None
        checkpoints.save(state(3))
        assert [read(path)["step"] for path in checkpoints.files] == [3, 1]


def test_a_checkpoint_whose_part_is_damaged_and_one_that_does_not_fit_are_passed_over(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    write(tmp_path / "part.pt", {})
    checkpoints.save(state(1))
    checkpoints.save(state(2))
    checkpoints.save({**state(3), "parts": ["part.pt"]})
    truncate(tmp_path / "part.pt")
    said: list[str] = []
    loaded = checkpoints.load(said.append, lambda found: "rows are missing" if found["step"] == 2 else None)
    assert loaded is not None and loaded["step"] == 1
    assert "part.pt is damaged" in said[0] and "rows are missing" in said[1]


def test_writing_takes_less_than_two_percent_of_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(checkpoint.time, "monotonic", lambda: now[0])
    fast = checkpoint.write_beside

    def slow(*args):
        now[0] += 0.5
        return fast(*args)

    monkeypatch.setattr(checkpoint, "write_beside", slow)
    checkpoints = Checkpoints(tmp_path)
    spent, writes = 0.0, 0
    for step in range(1, 20_001):
        now[0] += 0.03  # a step
        if checkpoints.due(at_epoch_end=step % 20 == 0):
            checkpoints.save(state(0))
            spent, writes = spent + 0.5, writes + 1
    assert writes >= 10
    assert spent / now[0] < 0.02 + 1e-3
