"""A configuration from the command line or from a plain tree, and back into one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from pipemare_exp.experiment.config import folder, yaml_text
from pipemare_exp.experiment.config.schema import Config
from pipemare_exp.experiment.config.tree import from_tree
from pipemare_exp.experiment.config.validate import check


def load(overrides: Sequence[str] = ()) -> Config:
    """The configuration that the command line's overrides stand for. Raises UserError."""
    from pipemare_exp.experiment.config import compose  # Hydra: a run from a plain tree does without it

    return from_mapping(compose.compose(overrides))


def from_mapping(tree: Mapping[str, Any]) -> Config:
    """The configuration of a plain tree (a run's config.yaml, or composed files). Raises UserError."""
    cfg = from_tree(tree, Config, also=tuple(folder.groups()))
    check(cfg)
    return cfg


def to_mapping(cfg: Config) -> dict[str, Any]:
    """`cfg` as plain dicts, lists and scalars; `from_mapping` takes it back."""
    return json.loads(json.dumps(asdict(cfg)))


def to_yaml(cfg: Config) -> str:
    """`cfg` as YAML, lists on one line."""
    return yaml_text.dumps(to_mapping(cfg))
