"""What is a text data set for language modelling, and where do its three splits and their tokens come from?

A text is made once, into `<data root>/text/<name>-<digest>`, the digest being over all that it was made from; with byte
pairs, its codes and its tokens are kept in a folder within.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from pipemare_exp.data import vocabulary
from pipemare_exp.data.cache import derived, made_whole
from pipemare_exp.data.description import Description
from pipemare_exp.data.digests import Input, of_files
from pipemare_exp.data.vocabulary import Vocabulary
from pipemare_exp.errors import UserError

SPLITS = ("train", "valid", "test")
MANIFEST = "text.json"
FORMAT = 1
"""Part of the digest: raised whenever the way from sources to text or to tokens changes."""


@dataclass(frozen=True)
class Source:
    """Where a text comes from: `parts()` gives (split, text) pairs, in order; `fingerprint` says what they follow from.

    `subset`: the examples (as `unit` calls them) of train, where the published set has more. `files` are those that are
    read in the data folder, by names that do not depend on where.
    """

    parts: Callable[[], Iterable[tuple[str, str]]]
    fingerprint: dict[str, str]
    subset: int | None = None
    unit: str = ""
    files: dict[str, Path] = field(default_factory=dict)


@dataclass(frozen=True)
class RunningText(Description):
    """A text data set: `source(root)` is where its text comes from, `root` being the data folder."""

    task: ClassVar[str | None] = "language_modelling"

    source: Callable[[Path], Source] = field(kw_only=True)

    def inputs(self, root: Path, cfg: Any) -> dict[str, Input]:
        """Those of the files that the text comes from, of the text, and of its byte pairs where they are taken."""
        source = self.source(root)
        text = prepare(self.name, source, root)
        read = source.files | {f"text/{split}.txt": text.folder / f"{split}.txt" for split in SPLITS}
        if cfg.data.bpe_merges is not None:
            folder = subwords(text, cfg.data.bpe_merges)
            read |= {f"text/bpe/{name}": folder / name for name in ("code", *(f"{split}.npy" for split in SPLITS))}
        return of_files(read)


@dataclass(frozen=True)
class Text:
    """A text in its folder: `{split}.txt` in UTF-8. `digest`: 16 hexadecimal digits of the SHA-256 of the splits."""

    folder: Path
    digest: str

    def read(self, split: str) -> bytes:
        """The bytes of "train", "valid" or "test"."""
        try:
            return (self.folder / f"{split}.txt").read_bytes()
        except OSError as error:
            raise UserError(f"cannot read {error.filename}: {error.strerror}; {_again(self.folder)}") from error


def prepare(name: str, source: Source, root: Path) -> Text:
    """The text `name`, from the folder where it was made before or made now. Raises UserError where it is damaged."""
    parts = {"format": FORMAT, "inputs": source.fingerprint}
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]
    folder = made_whole(derived(root, "text") / f"{name}-{digest}", lambda work: _write(source, work))
    text = Text(folder, _recorded(folder, "text"))
    if _digest(text.read(split) for split in SPLITS) != text.digest:
        raise UserError(f"{folder} no longer holds the text that was made there; {_again(folder)}")
    return text


def bits_without_a_model(text: Text) -> dict[str, float]:
    """Bits per byte of valid by what needs no model, for a reader of a run's: `unigram`, each byte by how often train
    has it (one more of each), and `gzip -9` of valid by itself."""
    train, valid = np.frombuffer(text.read("train"), np.uint8), np.frombuffer(text.read("valid"), np.uint8)
    counts = np.bincount(train, minlength=256) + 1
    unigram = float(-np.log2(counts / counts.sum())[valid].mean())
    return {"unigram": unigram, "gzip": 8 * len(gzip.compress(valid.tobytes(), 9)) / len(valid)}


def told(text: Text) -> str:
    """Where a text is, how long, and what its valid costs without a model: what `pipemare data prepare` prints."""
    sizes = ", ".join(f"{len(text.read(split)):,} {split}" for split in SPLITS)
    bits = ", ".join(f"{name} {value:.2f}" for name, value in bits_without_a_model(text).items())
    return f"{text.folder} is there: {sizes} bytes, text {text.digest}; bits per byte of valid: {bits}"


def _again(folder: Path) -> str:
    return f"delete {folder}, it is made again"


def _write(source: Source, folder: Path) -> None:
    texts: dict[str, list[str]] = {split: [] for split in SPLITS}
    for split, text in source.parts():
        texts[split].append(text)
    made = {split: "".join(parts).encode("utf-8") for split, parts in texts.items()}
    for split, content in made.items():
        (folder / f"{split}.txt").write_bytes(content)
    sizes = {split: len(content) for split, content in made.items()}
    manifest = {"text": _digest(made.values()), "bytes": sizes, "inputs": source.fingerprint}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2), encoding="utf-8")


def _digest(splits: Iterable[bytes]) -> str:
    whole = hashlib.sha256()
    for text in splits:
        whole.update(hashlib.sha256(text).digest())
    return whole.hexdigest()[:16]


def _recorded(folder: Path, key: str) -> str:
    try:
        return json.loads((folder / MANIFEST).read_text(encoding="utf-8"))[key]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{folder} is damaged ({error}); {_again(folder)}") from error


def tokens(text: Text, merges: int | None) -> tuple[Vocabulary, dict[str, np.ndarray]]:
    """The vocabulary, and the tokens of every split: bytes, or (`merges`) byte pairs learned on train.

    Raises UserError where the codes that are there were learned on another text.
    """
    if merges is None:
        return vocabulary.Bytes(), {split: vocabulary.Bytes().encode(text.read(split)) for split in SPLITS}
    folder = subwords(text, merges)
    try:
        codes = (folder / "code").read_text(encoding="utf-8")
        return vocabulary.Subwords(codes), {split: np.load(folder / f"{split}.npy") for split in SPLITS}
    except (OSError, ValueError) as error:
        raise UserError(f"{folder} is damaged ({error}); {_again(folder)}") from error


def subwords(text: Text, merges: int) -> Path:
    """The folder of `merges` byte pairs and of the tokens of every split, from before or made now; see `tokens`."""
    folder = made_whole(text.folder / f"bpe-{merges}", lambda work: _learn(text, merges, work))
    learned = _recorded(folder, "text")
    if learned != text.digest:
        raise UserError(
            f"{folder} has codes and tokens of the text {learned}, but this text is {text.digest}; {_again(folder)}"
        )
    return folder


def _learn(text: Text, merges: int, folder: Path) -> None:
    codes = vocabulary.learn(text.read("train"), merges)
    subwords = vocabulary.Subwords(codes)
    (folder / "code").write_text(codes, encoding="utf-8")
    for split in SPLITS:
        np.save(folder / f"{split}.npy", subwords.encode(text.read(split)))
    (folder / MANIFEST).write_text(json.dumps({"text": text.digest}), encoding="utf-8")
