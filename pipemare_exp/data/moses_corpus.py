"""The steps of a Moses-style corpus preparation: markup off, pairs cleaned by length, valid cut from train.

Written after fairseq's `prepare-iwslt14.sh` and Moses's `clean-corpus-n.perl`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

Pair = tuple[str, str]

_DROPPED = ("<url>", "<talkid>", "<keywords>")
_UNWRAPPED = re.compile(r"</?(?:title|description)>")
_SEGMENT = re.compile(r'<seg id="[0-9]*">\s*')
_SEGMENT_END = re.compile(r"\s*</seg>\s*")


def talk_lines(lines: Iterable[str]) -> list[str]:
    """A `train.tags` file's sentences: lines of URLs, talk numbers and keywords dropped, titles unwrapped.

    Other markup stays, as it does in fairseq's preparation; so do empty lines, since the sides are aligned by line.
    """
    return [_UNWRAPPED.sub("", line) for line in lines if not any(tag in line for tag in _DROPPED)]


def segments(lines: Iterable[str]) -> list[str]:
    """The sentences of a development or test set in XML; typographic apostrophes become straight ones.

    Entities such as `&amp;` stay as they are, as in fairseq's preparation.
    """
    found = [line for line in lines if "<seg id" in line]
    return [_SEGMENT_END.sub("", _SEGMENT.sub("", line)).replace("’", "'") for line in found]


def clean(pairs: Iterable[Pair], longest: int, ratio: float) -> list[Pair]:
    """The pairs with 1 to `longest` words on both sides, neither having more than `ratio` times the other's words."""
    kept = []
    for source, target in pairs:
        a, b = source.split(), target.split()
        if not a or not b or max(len(a), len(b)) > longest or max(len(a) / len(b), len(b) / len(a)) > ratio:
            continue
        kept.append((" ".join(a), " ".join(b)))
    return kept


def every(pairs: Sequence[Pair], n: int) -> dict[str, list[Pair]]:
    """Every n-th pair (counted from 1) to "valid", the others to "train"."""
    return {
        "train": [pair for number, pair in enumerate(pairs, 1) if number % n],
        "valid": [pair for number, pair in enumerate(pairs, 1) if number % n == 0],
    }
