"""The training methods, by name."""

from __future__ import annotations

from typing import Any

from pipemare_exp.errors import UserError, suggest
from pipemare_exp.methods.gpipe import GPipe
from pipemare_exp.methods.hogwild import Hogwild
from pipemare_exp.methods.pipedream import PipeDream
from pipemare_exp.methods.pipemare import PipeMare
from pipemare_exp.pipeline.method import Method

METHODS: dict[str, type[Method]] = {
    "gpipe": GPipe,
    "pipedream": PipeDream,
    "pipemare": PipeMare,
    "hogwild": Hogwild,
}

# Labels in the order in which tables and figures show them.
LABELS = ("gpipe", "pipedream", "async", "t1", "t2", "t1+t2", "t1+t2+t3")


def build(name: str, **options: Any) -> Method:
    """The method `name` with its options. Raises UserError for an unknown name or an option that it refuses."""
    if name not in METHODS:
        raise UserError(f"method.name={name}: known are {', '.join(METHODS)}{suggest(name, METHODS)}")
    method = METHODS[name]
    for option in options:
        if option in method.cannot:
            raise UserError(f"{option} with method {name}: {method.cannot[option]}")
    return method(**options)


__all__ = ["LABELS", "METHODS", "GPipe", "Hogwild", "Method", "PipeDream", "PipeMare", "build"]
