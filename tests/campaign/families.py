"""Which families of attempts are there?

A family is a module with

    WEIGHT                              its share of the campaign's time
    prepare(folder) -> bench            what all its attempts need, such as undisturbed runs; `bench.close()` ends it
    attempt(bench, random, folder)      one attempt in an empty folder, drawn from `random` alone -> Outcome
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

NAMES = ("commands", "files", "kills", "runtime", "storage", "environment", "concurrency", "hostile")


def find(name: str) -> ModuleType:
    """The module of the family `name`."""
    return import_module(f"tests.campaign.{name}")
