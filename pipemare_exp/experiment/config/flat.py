"""A configuration as one flat mapping of dotted names to texts: what is compared, shown and mirrored."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """{"a": {"b": [1, 2]}} -> {"a.b": "[1, 2]"}; text stays as it is."""
    flat: dict[str, str] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value if isinstance(value, str) else json.dumps(value, default=str)
    return flat
