"""Raw sentences to words and back: Moses's rules by sacremoses, or the simple rule of the generated phrases."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from pipemare_exp.errors import UserError, suggest

NAMES = ("moses", "simple")


@cache
def _moses(language: str) -> tuple[Any, Any]:
    from sacremoses import MosesDetokenizer, MosesTokenizer

    return MosesTokenizer(lang=language), MosesDetokenizer(lang=language)


@dataclass(frozen=True)
class Tokeniser:
    """`name` "moses": as Moses's tokenizer.perl, special characters escaped (`'` is `&apos;`); or "simple"."""

    name: str
    language: str

    def __post_init__(self) -> None:
        if self.name not in NAMES:
            raise UserError(f'tokeniser "{self.name}"; allowed: {", ".join(NAMES)}{suggest(self.name, NAMES)}')

    def words(self, line: str, lowercase: bool = True) -> str:
        """The words of a raw sentence, one space between them, in lower case unless told otherwise."""
        if self.name == "simple":
            from pipemare_exp.data.numerals import tokenise

            return tokenise(line)
        # Lower case comes after tokenisation, as in fairseq's preparation: abbreviations are known by their case.
        text = _moses(self.language)[0].tokenize(line, return_str=True)
        return text.lower() if lowercase else text

    def text(self, words: str) -> str:
        """A sentence to read, from its words; the case stays as it is."""
        if self.name == "simple":
            from pipemare_exp.data.numerals import detokenise

            return detokenise(words)
        return _moses(self.language)[1].detokenize(words.split())
