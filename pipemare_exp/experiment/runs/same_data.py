"""Is the data that a run would read now that which it was trained on?

meta.json keeps the size and SHA-256 of everything that the run reads, as the first session that recorded them found
them. A run of before that was recorded has none, and nothing is said of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipemare_exp.data.digests import Input
from pipemare_exp.errors import UserError
from pipemare_exp.experiment.runs.folder import Run
from pipemare_exp.experiment.runs.reading import Damaged

SHOWN = 12
"""Digits of a digest in a message."""

TRAINING = (
    "Name the folder that has the run's data (data.root=DIR, PIPEMARE_DATA), or move the run away to train it anew on "
    "the data here; or give data.changed=allow, which goes on with the other data and is recorded"
)
READING = "Put the run's data back; or give --other-data (in Python other_data=True), which takes the data here"

Other = dict[str, dict[str, Any] | None]
"""By name, what a run's data are now where they are not what they were; None: nothing of this name is read now."""


def check(run: Run, now: Mapping[str, Input], allow: bool, remedy: str) -> Other:
    """What of the data `now` is not what `run` was trained on. Raises UserError where there is some, unless `allow`.

    `remedy`: TRAINING or READING, what the user can do.
    """
    try:
        recorded = run.meta.get("data") or {}
    except Damaged:  # said, and written anew, by who trains the run
        recorded = {}
    other = differences(recorded, now)
    if other and not allow:
        raise UserError(_refusal(run, recorded, now, list(other), remedy))
    return other


def differences(recorded: Mapping[str, Any], now: Mapping[str, Input]) -> Other:
    """Where the two differ, in the order of the record; nothing where nothing was recorded."""
    if not recorded:
        return {}
    found = {name: one.as_json() for name, one in now.items()}
    return {name: found.get(name) for name in [*recorded, *found] if recorded.get(name) != found.get(name)}


def named(names: list[str]) -> str:
    """`train.de, valid.de and 3 more`."""
    if len(names) < 4:
        return ", ".join(names)
    return f"{', '.join(names[:2])} and {len(names) - 2} more"


def _refusal(run: Run, recorded: Mapping[str, Any], now: Mapping[str, Input], names: list[str], remedy: str) -> str:
    first, *rest = names
    path = now[first].path if first in now else None
    place = f" ({path})" if path else ""
    was, found = _shown(recorded.get(first)), _shown(now[first].as_json() if first in now else None)
    more = f"; {named(rest)} differ{'s' if len(rest) == 1 else ''} too" if rest else ""
    generated = "" if any(one.path for one in now.values()) else " They are made by installed packages."
    return f"{run.path} was trained on other data: {first}{place} was {was} and is {found}{more}.{generated} {remedy}"


def _shown(one: Any) -> str:
    if not isinstance(one, dict):
        return "not there"
    return f"{one.get('bytes', 0):,} bytes of SHA-256 {str(one.get('sha256'))[:SHOWN]}"
