"""Byte-pair encoding of words by subword-nmt: learn joint codes, apply them, undo them.

Sennrich, Haddow, Birch 2016, "Neural Machine Translation of Rare Words with Subword Units".
"""

from __future__ import annotations

import contextlib
import io
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from pipemare_exp.errors import UserError

SEPARATOR = "@@"


def learn(lines: Iterable[str], merges: int) -> str:
    """The codes (subword-nmt's format, version 0.2) of up to `merges` merges learned on the words of `lines`.

    Joint codes come from lines of both languages. Ends early, as subword-nmt does, where no pair occurs twice.
    """
    from subword_nmt.learn_bpe import learn_bpe

    counts = Counter(word for line in lines for word in line.split())
    if not counts:
        raise UserError("no words to learn BPE codes from: the training text is empty")
    # Already counted words are learned from exactly as running text is, in less time.
    vocabulary = io.StringIO("".join(f"{word} {count}\n" for word, count in counts.items()))
    codes, talk = io.StringIO(), io.StringIO()
    with contextlib.redirect_stderr(talk):
        learn_bpe(vocabulary, codes, merges, is_dict=True)
    return codes.getvalue()


class Encoder:
    """Cuts words into subwords by learned codes; a subword that its word goes on after ends in "@@"."""

    def __init__(self, codes: str) -> None:
        from subword_nmt.apply_bpe import BPE

        with contextlib.redirect_stderr(io.StringIO()):
            self._bpe = BPE(io.StringIO(codes))

    @classmethod
    def read(cls, path: Path) -> Encoder:
        """The encoder of a codes file; UserError where it is missing or is none."""
        try:
            return cls(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise UserError(f"cannot read the BPE codes {path}: {error.strerror}") from error
        except (UnicodeDecodeError, SystemExit, ValueError, IndexError) as error:
            raise UserError(f"{path} holds no BPE codes of subword-nmt; delete it to have them learned anew") from error

    def __call__(self, line: str) -> str:
        return self._bpe.process_line(line.strip())


def undo(line: str) -> str:
    """`line` with its subwords joined to words."""
    return (line + " ").replace(f"{SEPARATOR} ", "").rstrip()
