"""Random numbers as a pure function of what they are for, so that nothing random has a place to be lost at.

Every draw comes from a generator keyed by (seed, purpose, position). A resumed run therefore continues with exactly
the numbers that the uninterrupted one would have drawn, without saving the state of any generator.
"""

from __future__ import annotations

import hashlib

import torch


def key(*parts: object) -> int:
    """A 63-bit key of `parts` (strings, integers, None): the same on every machine and in every process."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def generator(device: torch.device | str, *parts: object) -> torch.Generator:
    """A new generator on `device`, seeded by `key(*parts)`."""
    made = torch.Generator(device=device)
    made.manual_seed(key(*parts))
    return made
