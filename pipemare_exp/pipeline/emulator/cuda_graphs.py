"""A microbatch's forward and backward captured once in CUDA graphs and replayed, weights swapped between the two.

A "graph" is a CUDA graph in this file; what autograd records is called so ("graph of autograd"). A graph keeps
addresses. Parameters and gradients never move (flat.py), so a replayed kernel reads whatever version
was copied into the parameters before it. What changes from microbatch to microbatch, its tensors, is copied into
buffers that stay. Forward and backward are two graphs over one pool of memory, since the backward reads other weights;
each set of shapes (and of numbers such as the minibatch's count, which a graph keeps too) is captured by itself.

The kernels and their order are those of the eager step, so the results are the same to the last bit. Not captured:
evaluation, the optimizer, recomputation; and refused: dropouts that draw, whose masks are keyed by reseeding the
generator at each call, where a graph has one seed per replay (other random operations have the one that the eager step
starts from, so they hold).

On a CPU the same code calls forward and backward through the same buffers, without graphs: that is for tests.
"""

from __future__ import annotations

import gc
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from pipemare_exp.errors import UserError
from pipemare_exp.pipeline.emulator.microbatch_tensors import kept, replaced
from pipemare_exp.pipeline.engine import Loss
from pipemare_exp.pipeline.weights.flat import FlatWeights

log = logging.getLogger(__name__)

CHOICES = ("auto", "on", "off")
LIMIT = 16
"""Sets of shapes that are captured; more are run eagerly, as each holds activations and takes a second to capture."""
SHAPES = 64
"""Sets of shapes after which nothing more is looked for: they hardly ever return."""
WARM_UPS = 3
"""Runs before a capture (torch's documentation): lazy initialisation and the choice of kernels must be over."""


class Passes(Protocol):
    """Forward and backward of one set of shapes over buffers that stay."""

    def forward(self) -> Tensor:
        """The microbatch's loss, of what the buffers hold."""
        ...

    def backward(self) -> None:
        """Add the gradients of the last forward to those of the parameters."""
        ...


class Called:
    """The stand-in of a graph: calls at every replay."""

    def __init__(self, run: Callable[[], Tensor]) -> None:
        self._run = run

    def forward(self) -> Tensor:
        self._share = self._run()
        return self._share.detach()

    def backward(self) -> None:
        self._share.backward()
        del self._share


class Replayed:
    """Two CUDA graphs over `pool`, captured on `stream`. `run` makes the loss from tensors that stay where they are;
    it is recorded here and not executed."""

    def __init__(self, run: Callable[[], Tensor], pool: Any, stream: torch.cuda.Stream) -> None:
        self._forward, self._backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._forward, pool=pool, stream=stream):
            share = run()
        with torch.cuda.graph(self._backward, pool=pool, stream=stream):
            share.backward()
        # The autograd graph goes here. The loss stays, so that no later capture takes its memory.
        self._share = share.detach()

    def forward(self) -> Tensor:
        self._forward.replay()
        return self._share

    def backward(self) -> None:
        self._backward.replay()


class CapturedMicrobatch:
    """A captured microbatch: its buffers, and what runs over them."""

    def __init__(self, buffers: Sequence[Tensor], passes: Passes) -> None:
        self._buffers, self._passes = list(buffers), passes

    def forward(self, tensors: Sequence[Tensor]) -> Tensor:
        """The loss of a microbatch of these tensors, valid until the next forward."""
        torch._foreach_copy_(self._buffers, list(tensors))
        return self._passes.forward()

    def backward(self) -> None:
        self._passes.backward()


class Found(NamedTuple):
    """A captured microbatch, and the tensors to replay it with."""

    captured: CapturedMicrobatch
    tensors: list[Tensor]


class Captures:
    """The captured microbatches of one emulator. A set of shapes runs eagerly once and is captured when it returns.

    `required`: raise UserError for what cannot be captured, instead of running it eagerly.
    """

    def __init__(self, model: nn.Module, flat: FlatWeights, required: bool, limit: int = LIMIT) -> None:
        self.model, self.flat, self.required, self.limit = model, flat, required, limit
        self.device = flat.weights.device
        self._found: dict[Any, CapturedMicrobatch] = {}
        self._seen: Counter[Any] = Counter()
        self._given_up: str | None = None
        self._pool: Any = None
        self._stream: torch.cuda.Stream | None = None
        if self.device.type == "cuda":
            self._pool, self._stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream(self.device)

    @property
    def captured(self) -> int:
        """How many sets of shapes have been captured."""
        return len(self._found)

    def find(self, microbatch: Any, loss: Loss) -> Found | None:
        """What to replay for `microbatch`; None: run it eagerly.

        Captures when it is time to, which leaves weights, gradients, statistics and random state as they are.
        """
        if self._given_up is not None or not self.model.training:
            return None
        tensors: list[Tensor] = []
        try:
            key = (kept(microbatch, tensors), loss)
        except TypeError as error:
            self._give_up(str(error))
            return None
        elsewhere = next((t for t in tensors if t.device != self.device), None)
        if elsewhere is not None:
            self._give_up(f"a microbatch holds a tensor on {elsewhere.device}, whose values a graph would keep")
            return None
        if key not in self._found:
            self._seen[key] += 1
            if len(self._seen) > SHAPES:
                self._give_up(f"microbatches have more than {SHAPES} sets of shapes")
                return None
            if self._seen[key] == 1 or len(self._found) == self.limit:
                return None
            made = self._make(microbatch, tensors, loss)
            if made is None:
                return None
            self._found[key] = made
        return Found(self._found[key], tensors)

    def _give_up(self, reason: str) -> None:
        if self.required:
            raise UserError(f"engine.graphs=on: {reason}; set engine.graphs=auto or off")
        self._given_up = reason
        log.info("steps run without CUDA graphs: %s", reason)

    def _make(self, microbatch: Any, tensors: Sequence[Tensor], loss: Loss) -> CapturedMicrobatch | None:
        buffers = [torch.empty_strided(t.size(), t.stride(), dtype=t.dtype, device=t.device) for t in tensors]
        for buffer, tensor in zip(buffers, tensors, strict=True):
            buffer.copy_(tensor)
        static = replaced(microbatch, iter(buffers))
        with self._as_before():
            try:
                self._warm_up(lambda: loss(self.model, static))
                passes = self._passes(lambda: loss(self.model, static))
            except RuntimeError as error:
                if self.device.type != "cuda" or isinstance(error, torch.cuda.OutOfMemoryError):
                    raise
                self._give_up(f"the capture failed ({str(error).strip().splitlines()[0]})")
                return None
        return CapturedMicrobatch(buffers, passes)

    def _passes(self, run: Callable[[], Tensor]) -> Passes:
        return Called(run) if self._stream is None else Replayed(run, self._pool, self._stream)

    def _warm_up(self, run: Callable[[], Tensor]) -> None:
        if self._stream is None:
            for _ in range(WARM_UPS):
                run().backward()
            return
        # What adds to a parameter's gradient runs on the stream on which autograd first met the parameter, for as long
        # as some graph of autograd lives. It must be the one that is captured: no earlier graph may be left, and the
        # warm-up takes that stream too.
        gc.collect()
        self._stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._stream):
            for _ in range(WARM_UPS):
                run().backward()
        torch.cuda.current_stream(self.device).wait_stream(self._stream)

    @contextmanager
    def _as_before(self) -> Iterator[None]:
        """Put gradients, BatchNorm's statistics and the random state back afterwards."""
        changed = [*self.flat.sums, *self.model.buffers()]
        copies = [tensor.clone() for tensor in changed]
        devices = [self.device] if self.device.type == "cuda" else []
        try:
            with torch.random.fork_rng(devices=devices):
                yield
        finally:
            with torch.no_grad():
                for tensor, before in zip(changed, copies, strict=True):
                    tensor.copy_(before)
