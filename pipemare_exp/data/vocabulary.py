"""Tokens of running text: bytes, or byte pairs of words. Both give a text back byte for byte."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property
from typing import Protocol

import numpy as np

from pipemare_exp.data import bpe

_WORDS = re.compile(r" ?\w+| ?[^\w\s]+|\s+(?!\S)|\s+")
"""A word, or a run of marks, with the space before it, or what is left of white space: after GPT-2's expression."""


class Vocabulary(Protocol):
    """What a token is.

    `lengths` (vocabulary size,): the bytes of each token, int64; they are what makes bits per byte of a loss per token.
    """

    name: str

    @property
    def lengths(self) -> np.ndarray: ...

    def encode(self, text: bytes) -> np.ndarray:
        """The tokens of a text in UTF-8, in the smallest unsigned integers that hold them."""
        ...

    def decode(self, tokens: list[int]) -> bytes:
        """The text of tokens; `encode`'s inverse."""
        ...


class Bytes:
    """A token for each of the 256 bytes."""

    name = "bytes"
    lengths = np.ones(256, dtype=np.int64)

    def encode(self, text: bytes) -> np.ndarray:
        return np.frombuffer(text, dtype=np.uint8)

    def decode(self, tokens: list[int]) -> bytes:
        return bytes(tokens)


def _printable() -> list[str]:
    """For each byte a character that subword-nmt takes for a letter of a word: none of them is white space."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    spare = iter(range(0x100, 0x200))
    return [chr(byte if byte in plain else next(spare)) for byte in range(256)]


CHARACTERS = _printable()
_BYTE = {character: byte for byte, character in enumerate(CHARACTERS)}


def words(text: bytes) -> Iterator[str]:
    """The words of a text in UTF-8, white space included, each byte written as its character of CHARACTERS."""
    for word in _WORDS.findall(text.decode("utf-8")):
        yield "".join(CHARACTERS[byte] for byte in word.encode("utf-8"))


class Subwords:
    """Byte-pair encoding by subword-nmt's `codes`: the 256 bytes, then what each merge makes, each once.

    Sennrich, Haddow, Birch 2016; over bytes as GPT-2 has it, so that no text has an unknown token.
    """

    def __init__(self, codes: str) -> None:
        self._encoder = bpe.Encoder(codes)
        merged = (line.replace("</w>", "").replace(" ", "") for line in codes.splitlines() if not line.startswith("#v"))
        self._tokens = list(dict.fromkeys([*CHARACTERS, *merged]))
        self._numbers = {token: number for number, token in enumerate(self._tokens)}
        self.name = f"{len(self._tokens):,} subwords"

    @cached_property
    def lengths(self) -> np.ndarray:
        return np.array([len(token) for token in self._tokens], dtype=np.int64)

    def encode(self, text: bytes) -> np.ndarray:
        known: dict[str, list[int]] = {}  # of so many words few are different
        found: list[int] = []
        for word in words(text):
            if word not in known:
                parts = self._encoder(word).split(" ")
                parts = [part.removesuffix(bpe.SEPARATOR) for part in parts[:-1]] + parts[-1:]
                known[word] = [self._numbers[part] for part in parts]
            found += known[word]
        return np.array(found, dtype=np.min_scalar_type(len(self._tokens) - 1))

    def decode(self, tokens: list[int]) -> bytes:
        return bytes(_BYTE[character] for token in tokens for character in self._tokens[token])


def learn(text: bytes, merges: int) -> str:
    """The codes of up to `merges` merges learned on a text."""
    return bpe.learn(words(text), merges)
