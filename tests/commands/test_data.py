"""`pipemare data`: what it lists, what it prepares, and what it says to a wrong name."""

from __future__ import annotations

import argparse
import json

import pytest

from pipemare_exp.commands import data
from pipemare_exp.data import DATASETS
from pipemare_exp.data.description import Description
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


@pytest.mark.parametrize("place", ["iwslt14.tokenized.de-en/tmp", "iwslt14.tokenized.de-en", "tmp", "."])
def test_iwslt14_is_ready_in_every_form_that_a_run_takes(place, tmp_path, capsys, monkeypatch):
    from pipemare_exp.data import iwslt14

    monkeypatch.setattr("pipemare_exp.data.DATASETS", {"iwslt14": DATASETS["iwslt14"]})
    folder = tmp_path / place
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"{split}.{language}" for split in ("train", "valid", "test") for language in ("de", "en")]
    for name in names:
        assert not data.survey(str(tmp_path))[0]["present"]
        (folder / name).write_text("ein satz\n")
    (row,) = data.survey(str(tmp_path))
    assert row["present"] and row["remedy"] is None and row["bytes"] == 6 * 9
    assert {path.rsplit("/", 1)[1] for path in row["files"]} == set(names)
    assert iwslt14.bitext(tmp_path).lines("train", "de") == ["ein satz"]
    assert command("list", "--data", str(tmp_path)) == 0
    assert "iwslt14   ready" in capsys.readouterr().out


def test_what_cannot_be_fetched_is_not_said_to_be(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("pipemare_exp.data.DATASETS", {"multi30k": DATASETS["multi30k"]})
    assert command("list", "--data", str(tmp_path)) == 0
    out = capsys.readouterr().out
    assert "data prepare multi30k" not in out and "https://github.com/multi30k/dataset" in out
