"""What rank 0 decides for all ranks before the pipeline runs: whether it does, and from which version on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist


class Alone(RuntimeError):
    """The other ranks have gone, or have not answered in time, before the pipeline ran."""


@contextmanager
def bounded(text: str) -> Iterator[None]:
    """What torch.distributed says of a wait that failed, as Alone with `text` before it."""
    try:
        yield
    except RuntimeError as error:  # all of its errors are
        raise Alone(f"{text}: {(str(error).strip().splitlines() or [type(error).__name__])[0]}") from error


def tell(decision: dict[str, Any]) -> None:
    """Rank 0 says what is to be done; every other rank is waiting in `told`."""
    with bounded("cannot reach the other ranks"):
        dist.broadcast_object_list([decision], src=0)


def told() -> dict[str, Any]:
    """What rank 0 says. Raises Alone where it does not within the process group's timeout."""
    decision: list[Any] = [None]
    with bounded("heard nothing from rank 0 before the pipeline ran"):
        dist.broadcast_object_list(decision, src=0)
    return decision[0]
