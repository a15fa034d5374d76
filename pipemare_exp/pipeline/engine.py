"""What trains a pipelined model, as a training loop sees it: the emulator, or rank 0's view of a real pipeline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from torch import Tensor, nn

from pipemare_exp.pipeline.observed import Observed

Loss = Callable[[nn.Module, Any], Tensor]
"""loss(model, microbatch): the microbatch's share of the minibatch's loss, a scalar. The shares of a minibatch add up
to its loss, so each is already divided by the count of the whole minibatch."""


class Engine(Protocol):
    """Makes the steps of a training, and shows the model as it is between two of them."""

    @property
    def version(self) -> int:
        """t: the number of updates done."""
        ...

    @property
    def parts(self) -> list[str]:
        """Files beside a checkpoint's own that `state_dict` belongs with, named from the folder of checkpoints."""
        ...

    def step(
        self,
        microbatches: Sequence[Any | None],
        loss: Loss,
        rate: float,
        *,
        observed: bool = False,
        diagnosed: bool = False,
    ) -> Tensor:
        """Forward and backward of every microbatch of a minibatch, and the update from version t to t + 1, at the base
        rate `rate`; returns the minibatch's loss, a detached scalar on the engine's device.

        None stands for an empty microbatch. `observed`: note what `observed()` tells of the step; `diagnosed`: its
        staleness too. Neither changes a bit of training. An engine that was given its minibatches, loss, rates and
        observed steps beforehand leaves the arguments unused.
        """
        ...

    def observed(self) -> Observed:
        """What was noted of the step just made, which was to be observed. Waits for the device."""
        ...

    def non_finite(self) -> dict[str, int | None]:
        """How many numbers of version t are not finite: of the `weights`, the `buffers` (the model's, but for those
        that held such numbers before training), the `optimizer`'s state and the `method`'s buffers.

        Asked after an observed step. None stands for what this engine cannot see. Waits for the device.
        """
        ...

    def evaluation(self) -> AbstractContextManager[nn.Module]:
        """The model of version t in eval mode, without gradients, for the time of a `with`; training then goes on as
        if nothing had been."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """All that training needs to go on from version t bit for bit. The tensors may be the ones in use: save or copy
        them before the next step."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken. Raises UserError, before anything changes, for another pipeline's."""
        ...
