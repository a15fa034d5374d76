"""Running text: docstrings from files, splits by module, tokens that give the text back, damaged folders."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path

import numpy as np
import pytest

from pipemare_exp.data import docstrings, running_text, ted, vocabulary
from pipemare_exp.data.running_text import Source
from pipemare_exp.errors import UserError

CODE = '''
"""About this module.

    Indented.

More.
"""
x = "no docstring"

def linspace(start, /, stop, num=50, *rest, endpoint=True, **more):
    """Evenly spaced."""
    def inner(): "Within."

if True:
    class Array:
        """An array."""

        async def get(self):
            """Evenly spaced."""

            return "nothing"
        def last(self):
            """The last."""
'''


def test_docstrings_of_a_module():
    seen = {"The last."}
    found = list(docstrings.of_module(CODE.encode(), "numpy.made", seen))
    assert found == [
        "module numpy.made:\nAbout this module.\n\n    Indented.\n\nMore.\n\n\n",
        "def linspace(start, stop, num, *rest, endpoint, **more):\nEvenly spaced.\n\n\n",
        "def inner():\nWithin.\n\n\n",
        "class Array:\nAn array.\n\n\n",
    ]
    assert seen == {
        "The last.",
        "About this module.\n\n    Indented.\n\nMore.",
        "Evenly spaced.",
        "Within.",
        "An array.",
    }
    with pytest.raises(UserError, match="module numpy.broken .*cannot be parsed"):
        list(docstrings.of_module(b"def (", "numpy.broken", set()))


def test_a_module_is_in_one_split_by_its_name():
    splits = [docstrings.split_of(f"package.module{k}") for k in range(4000)]
    assert 70 < splits.count("test") < 130 and 70 < splits.count("valid") < 130
    assert docstrings.split_of("numpy.linalg") == docstrings.split_of("numpy.linalg")


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(docstrings.PACKAGES, "no_such_package", "no-such-package")
    with pytest.raises(UserError, match="no_such_package is not installed.*requirements.lock"):
        docstrings.source(Path())


def made(root: Path, train: str = "the array has a shape, the grün array.\n" * 9) -> running_text.Text:
    parts = [("train", train), ("valid", "the  shape\n\n"), ("test", "a\tgrün ¡ end")]
    return running_text.prepare("made", Source(lambda: iter(parts), {"train": train}), root)


def test_a_text_is_made_once(tmp_path, monkeypatch):
    text = made(tmp_path)
    assert text.read("test").decode() == "a\tgrün ¡ end"
    monkeypatch.setattr(running_text, "_write", None)
    assert made(tmp_path) == text
    monkeypatch.undo()
    other = made(tmp_path, "another text. " * 9)
    assert other.folder != text.folder and other.digest != text.digest


def test_a_text_that_was_changed_is_refused(tmp_path):
    text = made(tmp_path)
    (text.folder / "valid.txt").write_text("something else")
    with pytest.raises(UserError, match=f"no longer holds the text.*delete {text.folder}"):
        made(tmp_path)
    (text.folder / running_text.MANIFEST).write_text("{")
    with pytest.raises(UserError, match="is damaged.*delete"):
        made(tmp_path)


@pytest.mark.parametrize("merges", [None, 1, 40])
def test_tokens_give_the_text_back_byte_for_byte(tmp_path, merges):
    text = made(tmp_path)
    for _ in range(2):  # made, and found
        words, tokens = running_text.tokens(text, merges)
        for split in running_text.SPLITS:
            assert words.decode(tokens[split].tolist()) == text.read(split)
            assert words.lengths[tokens[split]].sum() == len(text.read(split))
        assert tokens["train"].max() < len(words.lengths)
    if merges == 40:
        assert len(tokens["train"]) < 0.5 * len(text.read("train"))


def test_subwords_write_any_text_whatever_they_were_learned_on():
    words = vocabulary.Subwords(vocabulary.learn(b"some words, some more words " * 4, 20))
    text = "tabs\t\tand\r\n\n  spaces @@ </w> x@@y ünï ☃ \u00a0 end ".encode() + bytes(range(1, 128))
    assert words.decode(words.encode(text).tolist()) == text
    assert b"".join(words.decode([k]) for k in range(256)) == bytes(range(256))


def test_codes_of_another_text_are_refused(tmp_path):
    text, other = made(tmp_path), made(tmp_path, "another text. " * 9)
    running_text.tokens(text, 10)
    (text.folder / "bpe-10").rename(other.folder / "bpe-10")
    with pytest.raises(UserError, match=f"codes and tokens of the text {text.digest}, but this text is {other.digest}"):
        running_text.tokens(other, 10)
    manifest = other.folder / "bpe-10" / running_text.MANIFEST
    manifest.write_text(json.dumps({"text": other.digest}))
    np.save(other.folder / "bpe-10" / "test.npy", np.array([1]))
    (other.folder / "bpe-10" / "valid.npy").unlink()
    with pytest.raises(UserError, match="bpe-10 is damaged"):
        running_text.tokens(other, 10)


def test_ted_is_the_english_side_as_it_is_written(tmp_path):
    folder = tmp_path / "iwslt14.tokenized.de-en" / "tmp"
    folder.mkdir(parents=True)
    for split in ("train", "valid", "test"):
        (folder / f"{split}.de").write_text("ja .\nnein .\n")
        (folder / f"{split}.en").write_text("it &apos;s me , yes .\nwell , no !\n")
    source = ted.source(tmp_path)
    assert list(source.parts())[:2] == [("train", "it's me, yes.\n"), ("train", "well, no!\n")]
    assert (source.subset, source.unit) == (2, "sentence")
    with pytest.raises(UserError, match="iwslt14"):
        ted.source(tmp_path / "nowhere")


def test_bits_without_a_model(tmp_path):
    """Of train's 8 a's and 2 b's, one more each and of every other byte: a is 9 of 266, b 3 of 266."""
    parts = [("train", "aaaaaaaabb"), ("valid", "aab"), ("test", "b")]
    text = running_text.prepare("made", Source(lambda: iter(parts), {"made": "bits"}), tmp_path)
    found = running_text.bits_without_a_model(text)
    assert found["unigram"] == pytest.approx(-(2 * math.log2(9 / 266) + math.log2(3 / 266)) / 3)
    assert found["gzip"] == pytest.approx(8 * len(gzip.compress(b"aab", 9)) / 3)
    assert "10 train, 3 valid, 1 test bytes" in running_text.told(text)
