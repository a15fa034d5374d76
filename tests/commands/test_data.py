"""`pipemare data`: what it lists, what it prepares, and what it says to a wrong name."""

from __future__ import annotations

import argparse
import json

import pytest

from pipemare_exp.commands import data
from pipemare_exp.data import DATASETS, Description
from pipemare_exp.errors import UserError


def command(*words: str) -> int:
    parser = argparse.ArgumentParser("pipemare data")
    data.add_arguments(parser)
    return data.run(parser.parse_args(words))


@pytest.fixture
def two_data_sets(monkeypatch):
    """Only the image sets, and one made up that writes a file."""
    monkeypatch.setattr("pipemare_exp.data.DATASETS", {name: DATASETS[name] for name in ("digits", "cifar10")})


@pytest.mark.parametrize("name", DATASETS)
def test_every_data_set_describes_itself(name):
    from pipemare_exp.data import describe

    description = describe(name)
    assert description.name == name and description.what
    assert bool(description.files) <= bool(description.prepare)  # what needs files can be prepared


def test_list_names_the_place_of_what_is_missing(tmp_path, capsys, two_data_sets):
    assert command("list", "--data", str(tmp_path)) == 0
    out = capsys.readouterr().out
    assert "digits    ready" in out
    assert "cifar10   missing" in out and str(tmp_path / "cifar10.npz") in out
    assert f'run "pipemare data prepare cifar10 --data {tmp_path}"' in out


def test_list_as_json(tmp_path, capsys, two_data_sets, monkeypatch):
    monkeypatch.setenv("PIPEMARE_DATA", str(tmp_path))
    (tmp_path / "cifar10.npz").write_bytes(b"x" * 123)
    assert command("list", "--json") == 0
    listed = json.loads(capsys.readouterr().out)
    assert listed["root"] == str(tmp_path)
    rows = {row["name"]: row for row in listed["datasets"]}
    assert rows["cifar10"]["present"] and rows["cifar10"]["bytes"] == 123 and rows["cifar10"]["missing"] == []
    assert rows["digits"]["present"] and rows["digits"]["files"] == []


def test_prepare_runs_the_data_sets_own(tmp_path, capsys, monkeypatch):
    made = Description("made", "a file", ("file",), lambda root: f"wrote {(root / 'file')}")
    monkeypatch.setattr("pipemare_exp.data.describe", lambda name: made)
    assert command("prepare", "made", "--data", str(tmp_path)) == 0
    assert capsys.readouterr().out == f"wrote {tmp_path / 'file'}\n"


def test_digits_need_nothing(capsys):
    assert command("prepare", "digits") == 0
    assert "needs no preparation" in capsys.readouterr().out


def test_a_wrong_name():
    with pytest.raises(UserError, match='unknown data set "cifar"; allowed: digits.*did you mean "cifar10"'):
        command("prepare", "cifar")
