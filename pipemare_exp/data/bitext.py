"""From tokenised parallel text to fairseq's binarised data, made once per content of its inputs.

The result lies in `<data root>/binarised/<name>-<digest>`, the digest being over the checksums of everything that it
was made from; a changed input therefore makes a new folder, and a folder is there whole or not at all.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

from pipemare_exp.data import bpe
from pipemare_exp.data.cache import derived, made_whole
from pipemare_exp.data.description import Description
from pipemare_exp.data.digests import KEPT, Input, of_files
from pipemare_exp.environment import DATA
from pipemare_exp.errors import UserError

SPLITS = ("train", "valid", "test")
SOURCE, TARGET = "de", "en"
MANIFEST = "corpus.json"
FORMAT = 1
"""Part of the digest: raised whenever the way from text to binarised data changes."""


@dataclass(frozen=True)
class Bitext:
    """Tokenised, lower-cased parallel text before (or, with `segmented`, after) BPE.

    `lines(split, language)` gives a split's sentences; `fingerprint` identifies everything they are made from, `files`
    are those of it that lie in the data folder, by names that do not depend on where.
    `codes`: a file of BPE codes to apply; None: learn `merges` joint ones on train. `tokeniser` ("moses" or "simple")
    says how raw text becomes such lines. `raw_references`: untokenised target side of test, where it is kept.
    `full_train` is the number of pairs of the whole training set, where train may be a subset.
    """

    name: str
    lines: Callable[[str, str], list[str]]
    fingerprint: dict[str, str]
    merges: int
    codes: Path | None = None
    segmented: bool = False
    tokeniser: str = "moses"
    raw_references: Path | None = None
    full_train: int | None = None
    files: dict[str, Path] = field(default_factory=dict)


@dataclass(frozen=True)
class Text(Description):
    """A parallel text: `bitext(root, settings)` gives it from the data folder `root` and the configuration's `data`."""

    task: ClassVar[str | None] = "translation"

    bitext: Callable[[Path, Any], Bitext] = field(kw_only=True)

    def binarised(self, root: Path, cfg: Any) -> Binarised:
        """What the translation task of the configuration `cfg` reads, from the cache under `root` or made now."""
        return binarise(self.bitext(root, cfg.data), root, joint_dictionary=cfg.model.tying == "all")

    def inputs(self, root: Path, cfg: Any) -> dict[str, Input]:
        """Those of the text's files, then those of what was made of them, which is what the task reads.

        The manifest is left out: it holds counts of these files, and versions, which alone change no sentence.
        """
        made = self.binarised(root, cfg).folder
        names = sorted(path.name for path in made.iterdir() if path.name not in (MANIFEST, KEPT))
        return of_files(self.bitext(root, cfg.data).files | {f"binarised/{name}": made / name for name in names})


@dataclass(frozen=True)
class Binarised:
    """A folder of binarised data: `{split}.de-en.{de,en}.{bin,idx}`, `dict.{de,en}.txt`, `code`, and the tokenised
    text of valid and test for references; `manifest` holds counts, checksums and the tokeniser's name."""

    folder: Path
    manifest: dict[str, Any]

    @property
    def train_pairs(self) -> int:
        return self.manifest["pairs"]["train"]

    def prefix(self, split: str) -> Path:
        """What fairseq's names of a split's files begin with."""
        return self.folder / f"{split}.{SOURCE}-{TARGET}"

    def tokenised(self, split: str, language: str) -> list[str]:
        """The sentences of valid or test as words, before BPE."""
        return read_lines(self.folder / f"{split}.{language}")

    def raw_references(self) -> list[str] | None:
        """The untokenised target side of test, or None where the preparation had none."""
        path = self.folder / f"test.raw.{TARGET}"
        return read_lines(path) if path.exists() else None

    def encoder(self) -> bpe.Encoder | None:
        """The BPE encoder; None where finished BPE text came without its codes."""
        path = self.folder / "code"
        return bpe.Encoder.read(path) if path.exists() else None


def read_lines(path: Path) -> list[str]:
    """The lines of a UTF-8 text file, cut at line feeds only (other Unicode line ends stay within a sentence)."""
    try:
        text = path.read_bytes().decode("utf-8")
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 (byte {error.start}); convert it") from error
    lines = text.split("\n")
    return [line.rstrip("\r") for line in (lines[:-1] if lines[-1] == "" else lines)]


def write_lines(path: Path, lines: list[str]) -> None:
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")


def digest(text: Bitext, joint_dictionary: bool) -> str:
    """16 hexadecimal digits over everything that the binarised data depends on."""
    parts = {
        "format": FORMAT,
        "inputs": text.fingerprint,
        "merges": None if text.codes or text.segmented else text.merges,
        "segmented": text.segmented,
        "joint": joint_dictionary,
        "subword-nmt": version("subword-nmt"),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def binarise(text: Bitext, root: Path, joint_dictionary: bool = False) -> Binarised:
    """The binarised form of `text`, from the cache under `root` or made now.

    `joint_dictionary`: one dictionary for both languages (needed to share all embeddings).
    """
    folder = derived(root, "binarised") / f"{text.name}-{digest(text, joint_dictionary)}"
    made_whole(folder, lambda work: _make(text, work, joint_dictionary))
    try:
        return Binarised(folder, json.loads((folder / MANIFEST).read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise UserError(f"{folder} is damaged ({error}); delete it, it is made again") from error


def _make(text: Bitext, folder: Path, joint_dictionary: bool) -> None:
    from pipemare_exp.models import fairseq_door as door

    sentences = {(split, language): text.lines(split, language) for split in SPLITS for language in (SOURCE, TARGET)}
    pairs = {}
    for split in SPLITS:
        source, target = len(sentences[split, SOURCE]), len(sentences[split, TARGET])
        if source != target or not source:
            raise UserError(
                f"{text.name}: {split} has {source} lines in {SOURCE} and {target} in {TARGET}; both sides need the "
                f"same number, at least one. The text lies under data.root, --data or ${DATA}"
            )
        pairs[split] = source
    segmented = _segment(text, sentences, folder)
    for key, lines in segmented.items():
        write_lines(folder / f"{key[0]}.bpe.{key[1]}", lines)
    train = [folder / f"train.bpe.{language}" for language in (SOURCE, TARGET)]
    if joint_dictionary:
        shared = door.dictionary_of(train)
        dictionaries = {SOURCE: shared, TARGET: shared}
    else:
        dictionaries = {SOURCE: door.dictionary_of(train[:1]), TARGET: door.dictionary_of(train[1:])}
    counts = {}
    for language, words in dictionaries.items():
        words.save(str(folder / f"dict.{language}.txt"))
        for split in SPLITS:
            bpe_text = folder / f"{split}.bpe.{language}"
            prefix = folder / f"{split}.{SOURCE}-{TARGET}.{language}"
            counts[f"{split}.{language}"] = door.binarise(bpe_text, words, prefix)
            bpe_text.unlink()
    for split in ("valid", "test"):
        for language in (SOURCE, TARGET):
            lines = sentences[split, language]
            write_lines(folder / f"{split}.{language}", [bpe.undo(line) for line in lines] if text.segmented else lines)
    if text.raw_references:
        shutil.copyfile(text.raw_references, folder / f"test.raw.{TARGET}")
    manifest = {
        "name": text.name,
        "pairs": pairs,
        "full_train": text.full_train,
        "counts": counts,
        "dictionary": {language: len(words) for language, words in dictionaries.items()},
        "joint_dictionary": joint_dictionary,
        "tokeniser": text.tokeniser,
        "inputs": text.fingerprint,
        "versions": {name: version(name) for name in ("subword-nmt", "sacremoses")} | {"fairseq": door.version()},
    }
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2, ensure_ascii=False), encoding="utf-8")


def _segment(
    text: Bitext, sentences: dict[tuple[str, str], list[str]], folder: Path
) -> dict[tuple[str, str], list[str]]:
    if text.codes:
        codes = text.codes.read_text(encoding="utf-8")
    elif text.segmented:
        return sentences
    else:
        codes = bpe.learn(sentences["train", SOURCE] + sentences["train", TARGET], text.merges)
    (folder / "code").write_text(codes, encoding="utf-8")
    if text.segmented:
        return sentences
    encode = bpe.Encoder.read(folder / "code")
    return {key: [encode(line) for line in lines] for key, lines in sentences.items()}
