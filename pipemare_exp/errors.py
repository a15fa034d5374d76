"""Errors that a user can cause and mend: how they are raised and how a misspelt name finds its neighbour."""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Iterable


class UserError(ValueError):
    """A mistake that its message explains: the offending value, what is allowed, what to do.

    The command line prints the message without a traceback and ends with exit code 2.
    """


def printable(text: str) -> str:
    r"""`text` with its control characters and its bytes that are no UTF-8 written out (`\x1b`), line ends kept.

    A terminal obeys an escape sequence in a file's name as it obeys ours.
    """
    return "".join(each.encode("unicode_escape").decode("ascii") if _unprintable(each) else each for each in text)


def _unprintable(character: str) -> bool:
    return character != "\n" and unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp")


def suggest(name: str, allowed: Iterable[str]) -> str:
    """`'; did you mean "x"?'` for the allowed name nearest to `name`, or `''` where none is near."""
    near = difflib.get_close_matches(str(name), list(allowed), n=1, cutoff=0.5)
    return f'; did you mean "{near[0]}"?' if near else ""
