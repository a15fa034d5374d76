"""`ted`: the English side of IWSLT14, talks as running text, in lower case, a sentence a line.

Cettolo, Girardi, Federico 2012 (WIT3), TED talks; transcripts CC BY-NC-ND 3.0. It needs the folder that the translation
task `iwslt14` takes (`pipemare data prepare iwslt14`), whose splits are its splits.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

from pipemare_exp.data import bpe, iwslt14
from pipemare_exp.data.bitext import TARGET
from pipemare_exp.data.running_text import SPLITS, RunningText, Source, prepare, told
from pipemare_exp.data.tokenisers import Tokeniser


def describe() -> RunningText:
    """What `pipemare data list` says of the talks."""
    pairs = iwslt14.describe()
    return RunningText(
        "ted",
        "English TED talks of IWSLT14, 160,239 sentences to train on",
        pairs.files,
        _prepare,
        others=pairs.others,
        source=source,
    )


def _prepare(root: Path) -> str:
    said = iwslt14.prepare(root)
    return f"{said}\n{told(prepare('ted', source(root), root))}"


def source(root: Path) -> Source:
    """The sentences with their words joined as they are written, identified by the files that they come from."""
    pairs = iwslt14.bitext(root)
    lines = {split: pairs.lines(split, TARGET) for split in SPLITS}

    def parts() -> Iterator[tuple[str, str]]:
        from tqdm import tqdm

        tokeniser = Tokeniser(pairs.tokeniser, TARGET)
        for split in SPLITS:
            for line in tqdm(lines[split], desc=f"ted, {split}", unit="line", leave=False, disable=None):
                words = bpe.undo(line) if pairs.segmented else line
                yield split, tokeniser.text(words) + "\n"

    files = {f"{split}.{TARGET}": pairs.files[f"{split}.{TARGET}"] for split in SPLITS}
    subset = len(lines["train"]) if len(lines["train"]) < iwslt14.PUBLISHED["train"] else None
    return Source(parts, pairs.fingerprint | {"sacremoses": version("sacremoses")}, subset, "sentence", files)
