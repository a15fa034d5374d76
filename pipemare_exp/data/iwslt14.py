"""IWSLT14 German-English: prepared as fairseq's published `prepare-iwslt14.sh` does, or taken from its folder.

Cettolo, Girardi, Federico 2012 (WIT3), TED talks; transcripts CC BY-NC-ND 3.0. The folder `iwslt14.tokenized.de-en`
has that script's own layout, so that a folder which it left behind can be used as it is: `code` and
`tmp/{train,valid,test}.{de,en}` (tokenised, before BPE), or, without `tmp`, finished BPE text in `{split}.{de,en}`.
"""

from __future__ import annotations

import os
import sys
import tarfile
from pathlib import Path

from pipemare_exp.data import moses_corpus
from pipemare_exp.data.bitext import SOURCE, SPLITS, TARGET, Bitext, Text, read_lines, write_lines
from pipemare_exp.data.cache import make_folder
from pipemare_exp.data.digests import of_files
from pipemare_exp.data.fetch import fetch
from pipemare_exp.data.tokenisers import Tokeniser
from pipemare_exp.environment import DATA
from pipemare_exp.errors import UserError
from pipemare_exp.leftovers import work_folder

URL = "https://dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz"
ARCHIVE = "de-en.tgz"
FOLDER = "iwslt14.tokenized.de-en"
PUBLISHED = {"train": 160_239, "valid": 7_283, "test": 6_750}
"""Pairs after fairseq's script with the Moses tokeniser."""
MERGES = 10_000
TESTS = ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")
LANGUAGES = (SOURCE, TARGET)


def describe() -> Text:
    """What `pipemare data list` says of IWSLT14."""
    names = [f"{split}.{language}" for split in SPLITS for language in LANGUAGES]
    # The forms that `bitext` takes, in its order: tokenised or finished BPE text, in its folder or as the data folder.
    forms = [tuple(f"{place}{name}" for name in names) for place in (f"{FOLDER}/tmp/", f"{FOLDER}/", "tmp/", "")]
    return Text(
        "iwslt14",
        "IWSLT14 German-English TED talks, 160,239 pairs to train on",
        forms[0],
        prepare,
        others=tuple(forms[1:]),
        bitext=lambda root, settings: bitext(root, settings.bpe_merges),
    )


def prepare(root: Path, url: str = URL) -> str:
    """Make `root`/iwslt14.tokenized.de-en, from `root`/de-en.tgz or the network, unless it is there already.

    The folder appears whole or not at all. Counts that differ from the published ones are said in a warning: another
    version of the tokeniser moves a few pairs over the length limits.
    """
    folder = root / FOLDER
    if folder.exists():
        if _stage(folder) is None:
            raise UserError(
                f"{folder} is there but holds neither tmp/{{train,valid,test}}.{{de,en}} nor finished BPE text in "
                "{train,valid,test}.{de,en}; complete it, or move it away to have it made anew"
            )
        text = bitext(root)
        counts = {split: len(text.lines(split, TARGET)) for split in SPLITS}
        warn(counts)
        return f"{folder} is there: {_show(counts)}"
    archive = fetch(url, root / ARCHIVE)
    with work_folder(make_folder(root), f".{FOLDER}.") as work:
        counts = from_archive(archive, work)
        os.chmod(work, 0o755)
        os.rename(work, folder)
    warn(counts)
    return f"made {folder}: {_show(counts)}"


def _show(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {split}" for split, count in counts.items()) + " pairs"


def warn(counts: dict[str, int]) -> None:
    """A line on standard error for every split whose count is not the published one."""
    for split, count in counts.items():
        if count != PUBLISHED[split]:
            print(
                f"warning: iwslt14 {split} has {count:,} pairs, the published preparation has {PUBLISHED[split]:,}",
                file=sys.stderr,
            )


def from_archive(archive: Path, folder: Path) -> dict[str, int]:
    """Write `folder`/code, `folder`/tmp/{split}.{de,en} and tmp/test.raw.en from WIT3's archive; the pairs' counts."""
    from pipemare_exp.data import bpe

    members = _read(archive)
    raw = {language: members[f"train.tags.de-en.{language}"] for language in LANGUAGES}
    tokenisers = {language: Tokeniser("moses", language) for language in LANGUAGES}
    sides = [
        [tokenisers[language].words(line, lowercase=False) for line in moses_corpus.talk_lines(raw[language])]
        for language in LANGUAGES
    ]
    if len(sides[0]) != len(sides[1]):
        raise UserError(
            f"{archive}: its training text has {len(sides[0])} German and {len(sides[1])} English lines; it is damaged "
            "or another one: delete it and run again"
        )
    pairs = [(a.lower(), b.lower()) for a, b in moses_corpus.clean(zip(*sides, strict=True), longest=175, ratio=1.5)]
    held = moses_corpus.every(pairs, 23)
    test_raw = {
        language: [
            line for part in TESTS for line in moses_corpus.segments(members[f"IWSLT14.{part}.de-en.{language}.xml"])
        ]
        for language in LANGUAGES
    }
    tests = [[tokenisers[side].words(line) for line in test_raw[side]] for side in LANGUAGES]
    splits = {**held, "test": list(zip(*tests, strict=True))}
    make_folder(folder / "tmp")
    for split in SPLITS:
        for index, language in enumerate(LANGUAGES):
            write_lines(folder / "tmp" / f"{split}.{language}", [pair[index] for pair in splits[split]])
    write_lines(folder / "tmp" / f"test.raw.{TARGET}", test_raw[TARGET])
    train = splits["train"]
    codes = bpe.learn([pair[side] for side in (0, 1) for pair in train], MERGES)
    (folder / "code").write_text(codes, encoding="utf-8")
    return {split: len(splits[split]) for split in SPLITS}


def _read(archive: Path) -> dict[str, list[str]]:
    """The lines of the archive's files that are needed, by file name; nothing is unpacked to disk."""
    wanted = {f"train.tags.de-en.{language}" for language in LANGUAGES}
    wanted |= {f"IWSLT14.{part}.de-en.{language}.xml" for part in TESTS for language in LANGUAGES}
    found: dict[str, list[str]] = {}
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                name = member.name.rsplit("/", 1)[-1]
                file = tar.extractfile(member) if name in wanted else None
                if file is not None:
                    found[name] = file.read().decode("utf-8").split("\n")
                    if found[name][-1] == "":
                        found[name].pop()
    except (tarfile.TarError, EOFError, OSError, UnicodeDecodeError) as error:
        raise UserError(f"{archive} cannot be read ({error}); delete it and run again") from error
    if missing := sorted(wanted - set(found)):
        raise UserError(f"{archive} lacks {', '.join(missing)}: it is not WIT3's de-en archive of IWSLT14")
    return found


def bitext(root: Path, merges: int | None = None) -> Bitext:
    """The text in `root`/iwslt14.tokenized.de-en, or in `root` itself where that is such a folder.

    `merges`: learn so many joint BPE merges instead of applying the folder's `code` (None: use it, or learn 10,000
    where there is none).
    """
    folder = next((f for f in (root / FOLDER, root) if _stage(f) is not None), None)
    if folder is None:
        raise UserError(
            f"no IWSLT14 at {root / FOLDER}; run `pipemare data prepare iwslt14 --data {root}` (downloads 20 MB), or "
            "put there the folder that fairseq's prepare-iwslt14.sh leaves, with code and tmp/{train,valid,test}."
            f"{{de,en}}; --data DIR, data.root=DIR or {DATA} name another data folder"
        )
    segmented = _stage(folder) == "bpe"
    home = folder if segmented else folder / "tmp"
    files = {(split, language): home / f"{split}.{language}" for split in SPLITS for language in LANGUAGES}
    codes = folder / "code"
    use_codes = codes.is_file() and (merges is None or segmented)
    raw = folder / "tmp" / f"test.raw.{TARGET}"
    named = {f"{split}.{language}": path for (split, language), path in files.items()}
    named |= {path.name: path for path, used in ((codes, use_codes), (raw, raw.exists())) if used}
    return Bitext(
        "iwslt14",
        lambda split, language: read_lines(files[split, language]),
        {name: one.sha256 for name, one in of_files(named).items()},
        merges or MERGES,
        codes=codes if use_codes else None,
        segmented=segmented,
        raw_references=raw if raw.exists() else None,
        full_train=PUBLISHED["train"],
        files=named,
    )


def _stage(folder: Path) -> str | None:
    """How far a folder's text is: "tokenised" (tmp/ is whole), "bpe" (finished text beside it), or None."""

    def whole(place: Path) -> bool:
        return all((place / f"{split}.{language}").is_file() for split in SPLITS for language in LANGUAGES)

    if whole(folder / "tmp"):
        return "tokenised"
    return "bpe" if whole(folder) else None
