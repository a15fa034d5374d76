"""Multi30k, task 1, German-English: captions of photographs, from the raw text files that its authors publish.

Elliott, Frank, Sima'an, Specia 2016 (W16-3210). 29,000 pairs to train on, 1,014 for validation; the test set is
test2016 ("flickr", 1,000 pairs). The files are put into `multi30k/` by hand: there is no one archive to fetch.
"""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

from pipemare_exp.data.bitext import SOURCE, SPLITS, TARGET, Bitext, Text, read_lines
from pipemare_exp.data.digests import of_files
from pipemare_exp.data.tokenisers import Tokeniser
from pipemare_exp.environment import DATA
from pipemare_exp.errors import UserError

FOLDER = "multi30k"
FILES = {"train": "train", "valid": "val", "test": "test2016"}
SOURCES = "https://github.com/multi30k/dataset (data/task1/raw)"
FULL_TRAIN = 29_000
MERGES = 10_000


def describe() -> Text:
    """What `pipemare data list` says of Multi30k."""
    files = tuple(f"{FOLDER}/{name}.{language}" for name in FILES.values() for language in (SOURCE, TARGET))
    return Text(
        "multi30k",
        "Multi30k German-English captions, 29,000 pairs to train on",
        files,
        prepare,
        by_hand=f"put the unpacked text files of {SOURCES} there under these names (test2016 is its test_2016_flickr)",
        bitext=lambda root, settings: bitext(root, settings.bpe_merges),
    )


def prepare(root: Path) -> str:
    """Say whether the raw files are all there; they need nothing but tokenisation, which every run does or finds."""
    text = bitext(root)
    return f"{root / FOLDER} is there: {len(text.lines('train', TARGET)):,} training pairs"


def bitext(root: Path, merges: int | None = None) -> Bitext:
    """The captions, Moses-tokenised and lower-cased; joint BPE is learned on train."""
    folder = root / FOLDER
    files = {(split, side): folder / f"{FILES[split]}.{side}" for split in SPLITS for side in (SOURCE, TARGET)}
    if missing := [path.name for path in files.values() if not path.is_file()]:
        raise UserError(
            f"{folder} lacks {', '.join(missing)}; put the unpacked text files of {SOURCES} there, or name another "
            f"data folder with --data DIR, data.root=DIR or {DATA}"
        )

    def lines(split: str, language: str) -> list[str]:
        tokeniser = Tokeniser("moses", language)
        return [tokeniser.words(line) for line in read_lines(files[split, language])]

    named = {f"{split}.{side}": path for (split, side), path in files.items()}
    return Bitext(
        "multi30k",
        lines,
        {"sacremoses": version("sacremoses")} | {name: one.sha256 for name, one in of_files(named).items()},
        merges or MERGES,
        raw_references=files["test", TARGET],
        full_train=FULL_TRAIN,
        files=named,
    )
