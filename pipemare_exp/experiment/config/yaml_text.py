"""YAML of plain trees, also where PyYAML is not installed: what is written there is JSON, which is YAML too."""

from __future__ import annotations

import json
import math
from typing import Any

from pipemare_exp.errors import UserError

try:
    import yaml
except ModuleNotFoundError:  # a bare GPU machine; everywhere else it is a dependency
    yaml = None


def dumps(tree: Any) -> str:
    """`tree` (dicts, lists, texts, finite numbers, None) as YAML, lists on one line; as JSON without PyYAML."""
    if yaml is not None:
        return yaml.safe_dump(tree, sort_keys=False, default_flow_style=None, width=110)
    return _json(tree, "") + "\n"


def loads(text: str) -> Any:
    """The tree of a YAML text; without PyYAML only of one that `dumps` wrote there. Raises UserError for another."""
    if yaml is not None:
        try:
            return yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise UserError(f"not YAML: {' '.join(str(error).split())}") from error
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError("a YAML file that is not JSON cannot be read without PyYAML; pip install PyYAML") from error


def _json(value: Any, indent: str) -> str:
    if isinstance(value, dict):
        inner = indent + "  "
        items = [f"{inner}{json.dumps(str(key))}: {_json(item, inner)}" for key, item in value.items()]
        return "{\n" + ",\n".join(items) + f"\n{indent}}}" if items else "{}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_json(item, indent) for item in value) + "]"
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{value} cannot be said in JSON")
        digits, e, exponent = repr(value).partition("e")
        # YAML 1.1 takes 1e-05 for a text, and 1.0e-05 for the number
        return f"{digits}.0e{exponent}" if e and "." not in digits else repr(value)
    return json.dumps(value)
