"""Numbers on a command line: each option says its range, and no number is without an upper bound.

`whole` and `real` make what argparse calls a type: `add_argument("--steps", type=whole(low=1, high=MOST_PARTS))`.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

from pipemare_exp.errors import printable
from pipemare_exp.settings import LARGEST


def whole(low: int = 1, high: int = LARGEST) -> Callable[[str], int]:
    """From a text to a whole number within [low, high]; argparse prints the reason for any other."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:  # also beyond the digits that Python converts
            value = None
        if value is None or not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{_shown(text)}: it must be a whole number from {low} to {high}")
        return value

    return parse


def real(low: float, high: float, *, more: bool = False) -> Callable[[str], float]:
    """From a text to a number within [low, high], with `more` above `low`; argparse prints the reason for others."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not ((value > low or not more) and low <= value <= high):
            least = f"above {low:g}" if more else f"from {low:g}"
            raise argparse.ArgumentTypeError(f"{_shown(text)}: it must be a number {least} to {high:g}")
        return value

    return parse


def _shown(text: str) -> str:
    """A text of any length as a message names it."""
    return printable(text if len(text) <= 40 else f"{text[:37]}...")
