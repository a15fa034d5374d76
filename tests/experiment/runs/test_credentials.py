"""A password in an address is in no file of a run, whatever becomes of the run."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from pipemare_exp import cli
from pipemare_exp.analysis import rows
from pipemare_exp.experiment.runs.credentials import hide
from pipemare_exp.experiment.training import assemble
from tests.experiment.tiny_training import TINY, run_once

URI = "postgresql://me:SECRET@h/x"


@pytest.mark.parametrize(
    "text, hidden",
    [
        (URI, "postgresql://***@h/x"),
        ("mysql+pymysql://me:SEC/R@ET@h:3306/x", "mysql+pymysql://***@h:3306/x"),
        ("https://SECRET@h/x", "https://***@h/x"),
        ("http://h/x?user=me&password=SECRET&a=b", "http://h/x?user=me&password=***&a=b"),
        ("http://h/x?access_token=SECRET", "http://h/x?access_token=***"),
        ("http://localhost:5000", "http://localhost:5000"),
        ("sqlite:////tmp/a@b/mlflow.db", "sqlite:////tmp/a@b/mlflow.db"),
        ("seed=3", "seed=3"),
        ({"uri": [URI, 1, None]}, {"uri": ["postgresql://***@h/x", 1, None]}),
    ],
)
def test_what_is_hidden(text: object, hidden: object) -> None:
    assert hide(text) == hidden


def everything(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


def test_no_file_of_a_run_holds_the_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    overrides = [*TINY, f"tracking.uri='{URI}'", "method=gpipe", "max_steps=1"]
    original = assemble.Emulator.step

    def failing(self, *args, **kwargs):
        logging.getLogger("pipemare_exp.tracking").warning("no answer from %s", URI)
        raise RuntimeError(f"cannot reach {URI}")

    with monkeypatch.context() as patch:
        patch.setattr(assemble.Emulator, "step", failing)
        done, _ = run_once(overrides, tmp_path)
    assert done.outcome == "failed" and "postgresql://***@h/x" in done.run.status["error"]
    assert b"postgresql://***@h/x" in everything(tmp_path) and b"SECRET" not in everything(tmp_path)
    monkeypatch.setattr(assemble.Emulator, "step", original)
    done, _ = run_once(overrides, tmp_path)
    assert done.outcome == "finished"
    rows.write(rows.read(tmp_path), tmp_path / "csv")
    assert b"SECRET" not in everything(tmp_path)


def test_a_store_that_a_run_names_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    run_once([*TINY, f"tracking.uri='{URI}'", "method=gpipe", "max_steps=1"], tmp_path)
    assert cli.main(["track", "--runs", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "names the store postgresql://***@h/x" in said and "name that store with --uri, with its password" in said


def test_an_unquoted_address_is_refused_with_a_word_on_quoting(capsys: pytest.CaptureFixture) -> None:
    assert cli.main(["train", f"tracking.uri={URI}?a=b", "--cfg"]) == 2
    said = capsys.readouterr().err
    assert "quoted twice" in said and "\"tracking.uri='postgresql://***@h/x?a=b'\"" in said and "SECRET" not in said
