"""What rank 0 decides for all ranks before the pipeline runs: whether it does, and from which version on."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist


def tell(decision: dict[str, Any]) -> None:
    """Rank 0 says what is to be done; every other rank is waiting in `told`."""
    dist.broadcast_object_list([decision], src=0)


def told() -> dict[str, Any]:
    decision: list[Any] = [None]
    dist.broadcast_object_list(decision, src=0)
    return decision[0]
