"""What a task is to the training loop: minibatches cut into microbatches, their loss, and a metric."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn


@runtime_checkable
class Task(Protocol):
    """A data set, the model that it trains, and how the two are scored.

    Everything random is a pure function of (seed, purpose, epoch, index); a task keeps no random state,
    which is what makes a resumed run continue bit for bit.
    """

    name: str
    """That of the data set."""

    metric: str
    """Its name in `pipemare_exp.metrics`, which says which of two values is better and how one is shown."""

    notes: dict[str, str]
    """What a reader of a table must know about the data, e.g. {"train": "10,000-image subset"}."""

    subset: int | None
    """Training examples, where the data set's published training set has more; None where it is whole."""

    text: str | None
    """The digest of a text that depends on what is installed; None where the name of the data set says enough."""

    steps_per_epoch: int
    """Minibatches, hence optimizer steps, in every epoch."""

    eval_split: str
    """What `evaluate` looks at: "valid" or "test"."""

    def build_model(self) -> nn.Module:
        """The model with its seeded initial weights, on the device, already in its memory format."""
        ...

    def probe(self, model: nn.Module) -> None:
        """Run the model once (eval mode, no gradients) so that hooks see its modules in forward order.

        Leaves no trace: neither the mode, nor statistics, nor a random generator change.
        """
        ...

    def minibatches(self, epoch: int, start: int = 0) -> Iterator[list[Any | None]]:
        """The epoch's minibatches from index `start` on, each as N microbatches (None: an empty one).

        A pure function of (seed, epoch, index), augmentation included: starting at `start` gives what running
        from 0 would have given there.
        """
        ...

    def loss(self, model: nn.Module, microbatch: Any) -> Tensor:
        """The microbatch's loss: sum of its terms / the minibatch's count (examples or target tokens)."""
        ...

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """{"loss": mean, metric: value} of `eval_split`. The caller has set eval mode and weights."""
        ...

    def test(self, model: nn.Module, checkpoints: Any = None) -> dict[str, Any] | None:
        """The separate final test, or None where the data set has none or tuning forbids to look at it."""
        ...
