"""File systems without fsync, and names of a run that are pipes and devices: no command waits or fails for them."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from pipemare_exp import cli, disk
from pipemare_exp.analysis import rows
from pipemare_exp.experiment.runs.folder import Run
from pipemare_exp.experiment.runs.reading import Damaged, read_text
from pipemare_exp.experiment.runs.writing import write_json
from tests.experiment.run_folders import write_run

SMALL = ("config.yaml", "overrides.json", "meta.json", "result.json", "metrics.jsonl")


@pytest.mark.parametrize("code", disk.NO_SYNC)
def test_a_file_system_that_cannot_sync_is_written_all_the_same(tmp_path: Path, monkeypatch, code: int) -> None:
    def missing(descriptor: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", missing)
    write_json(tmp_path / "a.json", {"a": 1})
    assert (tmp_path / "a.json").read_text() == '{\n  "a": 1\n}\n'


def test_a_disk_that_fails_to_sync_is_an_error(tmp_path: Path, monkeypatch) -> None:
    def broken(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="Input/output"):
        write_json(tmp_path / "a.json", {"a": 1})
    assert list(tmp_path.iterdir()) == []


def _make(path: Path, kind: str) -> None:
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")


@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize("name", SMALL)
def test_a_pipe_or_a_device_in_a_file_s_place_is_damage(tmp_path: Path, name: str, kind: str) -> None:
    run = write_run(tmp_path, "gpipe")
    _make(run.path / name, kind)
    found = {row.name: row for row in rows.read(tmp_path)}
    if name == "config.yaml":  # no run is looked for where there is none
        with pytest.raises(Damaged, match="not a regular file"):
            read_text(run.path / name)
    else:
        assert found[run.name].outcome == "damaged" and "not a regular file" in (found[run.name].problem or "")


def test_a_pipe_in_the_place_of_the_lock_is_not_waited_for(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    run.create()
    _make(run.path / "lock", "pipe")
    assert not run.is_locked()
    with pytest.raises(OSError), run.lock():
        pass


@pytest.mark.parametrize("text", ["[1]", "x", "", '{"method": 1}', '{"ranks": {}}', "[" * 50_000])
def test_the_timeline_of_a_damaged_runtime_json_is_told(tmp_path: Path, text: str, capsys) -> None:
    run = write_run(tmp_path, "gpipe")
    (run.path / "runtime.json").write_text(text)
    assert cli.main(["timeline", str(run.path)]) == 2
    assert "runtime.json is damaged" in capsys.readouterr().err
