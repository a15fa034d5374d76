"""How does a password in an address stay out of what a run records?"""

from __future__ import annotations

import re
from typing import Any

HIDDEN = "***"

_USER = re.compile(r"(://(?!/))\S*@")  # to the last @: a password may hold one, and a slash, unescaped
_QUERY = re.compile(r"([?&][^=&\s]*(?:pass|pwd|secret|token|key|sig)[^=&\s]*=)[^&\s'\"]*", re.IGNORECASE)


def hide(value: Any) -> Any:
    """`value` (text, or lists and dicts of it) with user and password out of all addresses.

    `postgresql://me:SECRET@h/x` becomes `postgresql://***@h/x`, `?password=SECRET` becomes `?password=***`. Whatever a
    run writes of what it was told goes through here.
    """
    if isinstance(value, str):
        return _QUERY.sub(rf"\1{HIDDEN}", _USER.sub(rf"\1{HIDDEN}@", value))
    if isinstance(value, dict):
        return {key: hide(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(hide(item) for item in value)
    return value
