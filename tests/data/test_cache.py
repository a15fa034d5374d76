"""Where data is looked for, and files that appear whole or not at all."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from pipemare_exp.data.cache import atomic_write, data_root, make_folder, sha256
from pipemare_exp.errors import UserError


def test_order_of_the_places(monkeypatch, tmp_path):
    monkeypatch.setenv("PIPEMARE_DATA", str(tmp_path / "variable"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert data_root(str(tmp_path / "config")) == tmp_path / "config"
    assert data_root("~/there") == tmp_path / "home" / "there"
    assert data_root(None) == tmp_path / "variable"
    monkeypatch.setenv("PIPEMARE_DATA", "")
    assert data_root(None) == tmp_path / "cache" / "pipemare"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert data_root(None) == Path.home() / ".cache" / "pipemare"


def test_atomic_write_leaves_the_old_file_when_it_fails(tmp_path):
    path = tmp_path / "new" / "file.txt"
    with atomic_write(path, "w") as file:
        file.write("grün\n")
    with pytest.raises(RuntimeError, match="in the middle"), atomic_write(path, "w") as file:
        file.write("half")
        raise RuntimeError("in the middle")
    assert path.read_text(encoding="utf-8") == "grün\n"
    assert [p.name for p in path.parent.iterdir()] == ["file.txt"]


def test_atomic_write_shows_nothing_before_the_end(tmp_path):
    path = tmp_path / "file"
    with atomic_write(path) as file:
        file.write(b"x" * 100_000)
        assert not path.exists()
    assert path.stat().st_size == 100_000


def test_a_folder_that_cannot_be_made_is_the_users_error(tmp_path):
    blocker = tmp_path / "blocker"
    blocker.write_text("a file where a folder should be")
    with pytest.raises(UserError, match="blocker.*PIPEMARE_DATA"):
        make_folder(blocker / "data")


def test_a_full_disk_is_the_users_error(tmp_path, monkeypatch):
    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with (
        pytest.raises(UserError, match="cannot write .*file: No space left on device; make room"),
        atomic_write(tmp_path / "file") as file,
    ):
        file.write(b"x")
    assert list(tmp_path.iterdir()) == []


def test_sha256(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"pipemare" * 100_000)
    assert sha256(path) == hashlib.sha256(b"pipemare" * 100_000).hexdigest()
