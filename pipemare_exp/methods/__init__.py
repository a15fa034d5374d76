"""The training methods, by name."""

from __future__ import annotations

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


def build(name: str, **options: object) -> Method:
    """The method `name` with its options. Raises UserError for an unknown name."""
    if name not in METHODS:
        raise UserError(f"method.name={name}: known are {', '.join(METHODS)}{suggest(name, METHODS)}")
    return METHODS[name](**options)


__all__ = ["LABELS", "METHODS", "GPipe", "Hogwild", "Method", "PipeDream", "PipeMare", "build"]
