"""The identity of data: what is told apart, what is read once only, and that no data set is without one."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from pipemare_exp import data
from pipemare_exp.data import digests, digits
from pipemare_exp.data.description import Description
from pipemare_exp.data.multi30k import FILES
from pipemare_exp.data.running_text import SPLITS, RunningText, Source
from pipemare_exp.errors import UserError
from pipemare_exp.experiment.config.load import load


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that are read whole, in order; every file counts as left alone for long enough."""
    found: list[str] = []
    digest = hashlib.file_digest

    def counted(file, name):
        found.append(Path(file.name).name)
        return digest(file, name)

    monkeypatch.setattr(digests.hashlib, "file_digest", counted)
    monkeypatch.setattr(digests, "SETTLED", 0.0)
    return found


def test_a_file_is_read_once_until_it_changes(tmp_path: Path, reads: list[str]) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"first")
    expected = hashlib.sha256(b"first").hexdigest()
    assert digests.of_file(path) == digests.of_file(path) == digests.Input(5, expected, path)
    assert reads == ["text"]

    path.write_bytes(b"other")  # of the same size
    assert digests.of_file(path).sha256 == hashlib.sha256(b"other").hexdigest()
    times = path.stat()
    path.write_bytes(b"third")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # what `cp -p` does: the time of the change stays
    assert digests.of_file(path).sha256 == hashlib.sha256(b"third").hexdigest()
    assert reads == ["text"] * 3


def test_what_has_just_changed_is_not_kept(tmp_path: Path) -> None:
    """Within one tick of a file system's clock a second change would go unseen."""
    path = tmp_path / "text"
    path.write_bytes(b"first")
    digests.of_file(path)
    assert not (tmp_path / digests.KEPT).exists()


def test_a_folder_that_is_not_to_be_written_to_serves(tmp_path: Path, reads: list[str]) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "text").write_bytes(b"first")
    folder.chmod(0o555)
    try:
        assert digests.of_file(folder / "text") == digests.of_file(folder / "text")
        assert [path.name for path in folder.iterdir()] == ["text"] and reads == ["text"] * 2
    finally:
        folder.chmod(0o755)


@pytest.mark.parametrize("damage", [b"", b"\xff", b"[1]", b'{"text": 3}', b"[" * 100_000, "digest"])
def test_a_damaged_cache_costs_a_reading(damage: bytes | str, tmp_path: Path, reads: list[str]) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"first")
    whole = digests.of_file(path)
    kept = tmp_path / digests.KEPT
    if damage == "digest":
        entries = json.loads(kept.read_text())
        entries["text"]["sha256"] = "no digest"
        damage = json.dumps(entries).encode()
    assert isinstance(damage, bytes)
    kept.write_bytes(damage)
    assert digests.of_file(path) == whole and reads == ["text"] * 2
    assert digests.of_file(path) == whole and reads == ["text"] * 2  # it was written anew


def test_the_cache_forgets_files_that_are_gone(tmp_path: Path, reads: list[str]) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(name.encode())
        digests.of_file(tmp_path / name)
    (tmp_path / "a").unlink()
    (tmp_path / "c").write_bytes(b"c")
    digests.of_file(tmp_path / "c")
    assert set(json.loads((tmp_path / digests.KEPT).read_text())) == {"b", "c"}
    with pytest.raises(UserError, match="cannot read .*a: No such file"):
        digests.of_file(tmp_path / "a")


def test_arrays_are_told_apart_by_type_shape_and_numbers() -> None:
    one = np.arange(6, dtype=np.uint8)
    others = [one, one.astype(np.int8), one.reshape(2, 3), one + 1]
    found = [digests.of_arrays({"x": array})["x"] for array in others]
    assert len({each.sha256 for each in found}) == 4 and {each.bytes for each in found} == {6}
    assert digests.of_arrays({"x": one.reshape(2, 3).T.copy().T})["x"] == found[2]  # another order in memory


def test_digits_are_identified_by_what_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    cfg = load(["task=digits", "method=gpipe"])
    found = data.inputs(cfg)
    assert list(found) == ["x_train", "y_train", "x_test", "y_test"]
    assert found["x_train"].bytes == 1400 * 64 and found["y_test"].bytes == 397 * 8
    assert data.inputs(load(["task=digits", "method=gpipe", "seed=4"])) == found

    table = digits._table().copy()
    table[0, 0] ^= 1
    monkeypatch.setattr(digits, "_table", lambda: table)
    changed = data.inputs(cfg)
    assert len([name for name in found if changed[name] != found[name]]) == 1


def test_cifar10_is_identified_by_its_file(tmp_path: Path) -> None:
    (tmp_path / "cifar10.npz").write_bytes(b"images")
    cfg = load(["task=cifar10", "method=gpipe", f"data.root={tmp_path}"])
    assert data.inputs(cfg) == {"cifar10.npz": digests.of_file(tmp_path / "cifar10.npz")}


def test_a_data_set_that_says_nothing_is_identified_by_its_source_file(monkeypatch: pytest.MonkeyPatch) -> None:
    bare = Description("digits", "made up")
    monkeypatch.setitem(data.DATASETS, "digits", bare)
    found = data.inputs(load(["task=digits", "method=gpipe"]))
    assert found == digests.of_source(Path(digits.__file__)) and list(found) == ["digits.py"]


def test_of_several_forms_the_one_that_is_there_is_identified(tmp_path: Path) -> None:
    described = Description("x", "made up", ("a", "b"), others=(("c",),))
    (tmp_path / "a").write_bytes(b"")
    (tmp_path / "c").write_bytes(b"c")
    assert list(described.inputs(tmp_path, None)) == ["c"]
    (tmp_path / "b").write_bytes(b"b")
    assert list(described.inputs(tmp_path, None)) == ["a", "b"]


def test_running_text_is_identified_by_its_files_its_splits_and_its_byte_pairs(tmp_path: Path) -> None:
    home = tmp_path / "talks"
    home.write_text("ab ab ab")
    source = Source(lambda: [(split, "ab ab ab " * 9) for split in SPLITS], {"v": "1"}, files={"talks": home})
    described = RunningText("made", "made up", source=lambda root: source)
    read = ["talks", *(f"text/{split}.txt" for split in SPLITS)]
    found = described.inputs(tmp_path, SimpleNamespace(data=SimpleNamespace(bpe_merges=None)))
    assert list(found) == read and found["text/train.txt"].bytes == 81
    pairs = described.inputs(tmp_path, SimpleNamespace(data=SimpleNamespace(bpe_merges=2)))
    assert list(pairs) == [*read, "text/bpe/code", *(f"text/bpe/{split}.npy" for split in SPLITS)]
    assert {name: pairs[name] for name in read} == found


def test_captions_are_identified_by_their_files_and_what_was_made_of_them(tmp_path: Path) -> None:
    folder = tmp_path / "multi30k"
    folder.mkdir()
    for name in FILES.values():
        (folder / f"{name}.de").write_text("ein hund rennt .\nein hund schläft .\n")
        (folder / f"{name}.en").write_text("a dog runs .\na dog sleeps .\n")
    cfg = load(["task=multi30k", "method=gpipe", f"data.root={tmp_path}", "data.bpe_merges=5"])
    found = data.inputs(cfg)
    assert list(found)[:6] == [f"{split}.{side}" for split in ("train", "valid", "test") for side in ("de", "en")]
    assert found["valid.de"].path == folder / "val.de"
    made = {name for name in found if name.startswith("binarised/")}
    assert {"binarised/code", "binarised/dict.de.txt", "binarised/train.de-en.en.bin"} <= made
    assert not [name for name in made if "json" in name]

    (folder / "test2016.en").write_text("a dog runs .\na cat sleeps .\n")  # as long as before
    changed = data.inputs(cfg)
    assert list(changed) == list(found)
    differing = [name for name in found if changed[name].as_json() != found[name].as_json()]
    assert differing[0] == "test.en" and "binarised/test.en" in differing and "train.en" not in differing
