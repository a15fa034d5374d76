"""The emulator: trains on one device while every pass reads exactly the weights that the method prescribes.

Stale weights and autograd: a parameter's storage never moves. Before a microbatch's forward the prescribed versions
are copied into it, and before its backward the backward's weights, behind autograd's back. The backward then takes its
Jacobian products with the second set at the activations that the first one left. Right only where the tensors that
operations saved for the backward are the parameters themselves: under autocast they are cast copies, and compiled
graphs keep what they like, so both are refused. Where much memory would be moved so, on a CPU, the backward is given
its weights beside the live ones instead (`backward_weights`): the same bits, without the copies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from pipemare_exp.errors import UserError
from pipemare_exp.pipeline.emulator import cuda_graphs
from pipemare_exp.pipeline.emulator.backward_weights import WORTHWHILE, BackwardWeights
from pipemare_exp.pipeline.engine import Loss
from pipemare_exp.pipeline.method import Method
from pipemare_exp.pipeline.model.dropout import KeyedDropout
from pipemare_exp.pipeline.model.recompute import Segments
from pipemare_exp.pipeline.model.units import Unit, group
from pipemare_exp.pipeline.shape import Shape
from pipemare_exp.pipeline.stage_weights import Clip, MakeOptimizer, StageWeights
from pipemare_exp.pipeline.weights import staged_copies as images
from pipemare_exp.pipeline.weights.precision import flat_weights
from pipemare_exp.pipeline.weights.reads import Read


class Emulator:
    """Runs a method on `model`, cut into stages, one minibatch of N microbatches at a time.

    - `units`, `boundaries`: the weight units in forward order and the first unit of each stage;
    - `optimizer`: makes a torch optimizer from one parameter group per stage;
    - `clip`: None, or ("stage" | "global", largest norm) over the summed gradients. A global norm cannot be had in a
      real asynchronous pipeline, where stages update at different moments;
    - `segment`: S, stages to a recomputation segment (duplex slots only), or None to keep all activations;
    - `split`: every stage of `boundaries` is made into this many stages, each with a part of its weights;
    - `graphs`: auto, on or off, whether microbatches are captured in CUDA graphs (see cuda_graphs.py);
    - `precision`: fp32 or tf32, which are the same here, or bf16 (see `pipeline/weights/precision.py`);
    - `history`: device or host, where old versions lie (see `pipeline/weights/host_history.py`);
    - `beside`: whether a backward finds its weights beside the live ones or copied into them (through images, unless
      there are few stages), which changes time and no bit; None: beside on a CPU where the weights are large.
      Recomputation and split stages copy.

    The model must have its final device, dtype and memory format, and must not be moved or converted afterwards.
    """

    def __init__(
        self,
        model: nn.Module,
        units: Sequence[Unit],
        boundaries: Sequence[int],
        method: Method,
        optimizer: MakeOptimizer,
        microbatches: int,
        *,
        slots: str = "duplex",
        seed: int = 0,
        clip: Clip = None,
        segment: int | None = None,
        split: int = 1,
        graphs: str = "off",
        precision: str = "fp32",
        history: str = "device",
        beside: bool | None = None,
    ) -> None:
        if microbatches < 1:
            raise UserError(f"pipeline.microbatches={microbatches}: at least one microbatch is needed")
        if clip is not None and (clip[0] not in ("stage", "global") or not clip[1] > 0):
            raise UserError(f"clip={clip}: must be None or ('stage' | 'global', a norm above 0)")
        if any(_is_compiled(module) for module in model.modules()):
            raise UserError("a compiled model cannot be emulated: its backward does not read the swapped weights")
        stages = [[name for unit in stage for name in unit.parameters] for stage in group(units, boundaries)]
        if split < 1:
            raise UserError(f"pipeline.split={split}: must be at least 1, the parts that each stage is made into")
        self.model, self.method, self.microbatches = model, method, microbatches
        self.boundaries = list(boundaries)
        self._shape = {
            "stages": len(self.boundaries),
            "boundaries": self.boundaries,
            "microbatches": microbatches,
            "slots": slots,
            "segment": segment,
            "split": split,
        }
        self.segments = None if segment is None else Segments(model, units, boundaries, segment, slots, split)
        if precision == "bf16" and segment is not None:
            raise UserError("precision=bf16 with pipeline.recompute: pieces are run by themselves, in fp32 only")
        self.flat = flat_weights(precision, model, stages, split)
        weights = [stage.detach() for stage in self.flat.stages]
        method.bind(Shape(len(weights), microbatches, slots, segment), weights)
        if history not in ("device", "host"):
            raise UserError(f"engine.history={history}: allowed are device, host")
        self._on_host = history == "host"
        self.dropout = KeyedDropout(model, seed, self.flat.weights.device)
        self.graphs = cuda_graphs.make(graphs, model, self.flat, segment is not None, self.dropout.draws())
        if beside is None:
            beside = self.flat.weights.device.type == "cpu" and self.flat.weights.nbytes >= WORTHWHILE
        # Beside the live weights stand fp32 ones, on the device, and a captured graph reads the live ones only.
        plain = precision != "bf16" and not self._on_host and self.graphs is None
        beside = beside and plain and segment is None and split == 1
        small = beside or self._on_host or len(weights) < 2 * images.FEWEST
        self.weights = StageWeights(
            self.flat.stages,
            method,
            optimizer,
            clip,
            method.depths(),
            on_host=self._on_host,
            whole=None if small else self.flat.weights,
        )
        self.weights.refresh = self.flat.refresh if precision == "bf16" else None
        self.history, self.optimizer = self.weights.history, self.weights.optimizer
        self.beside = BackwardWeights(self.flat, self.weights) if beside else None
        model.register_forward_pre_hook(self._refuse_autocast)  # also where the loss switches it on

    @property
    def rates(self) -> list[float]:
        """The stages' rates of the last step."""
        return self.weights.rates

    @property
    def version(self) -> int:
        """t: the number of updates done."""
        return self.history.current

    @property
    def parts(self) -> list[str]:
        """Empty: `state_dict` is whole."""
        return []

    def step(self, microbatches: Sequence[Any | None], loss: Loss, rate: float) -> Tensor:
        """One minibatch and its update at base rate `rate`; returns the minibatch's loss, detached, on the device.

        `loss(model, microbatch)` is the microbatch's share, already divided by the count of the whole minibatch. None
        stands for an empty microbatch: it keeps its slot and does nothing.
        """
        if len(microbatches) != self.microbatches:
            raise ValueError(f"{len(microbatches)} microbatches given, the pipeline has {self.microbatches}")
        self.flat.check()
        self._refuse_autocast()
        step = self.version
        self.flat.gradients.zero_()
        total = torch.zeros((), device=self.flat.weights.device)
        for n, microbatch in enumerate(microbatches):
            if microbatch is None:
                continue
            self.weights.load(self.method.forward(step, n), images.FORWARD)
            if self._on_host and n + 1 < self.microbatches:
                self.weights.prefetch(self.method.forward(step, n + 1))
            run = self._run if self.segments is None else self._run_recomputing
            total = total + run(step, n, microbatch, loss)
        self.weights.update(step, rate)
        return total

    def _refuse_autocast(self, *_: Any) -> None:
        if self.model.training and torch.is_autocast_enabled(self.flat.weights.device.type):
            raise UserError("autocast is on: its cast copies would be what the backward reads; switch it off")

    def _run(self, step: int, n: int, microbatch: Any, loss: Loss) -> Tensor:
        reads = self.method.backward(step, n)
        if self.beside is not None and not self.weights.holds(reads):
            return self._run_beside(self.beside, reads, step, n, microbatch, loss)
        found = None if self.graphs is None else self.graphs.find(microbatch, loss)
        with self.dropout.at(step, n):
            share = loss(self.model, microbatch) if found is None else found.captured.forward(found.tensors)
        self.weights.load(reads, images.BACKWARD)
        share.backward() if found is None else found.captured.backward()
        self.flat.collect()
        return share.detach()

    def _run_beside(
        self, beside: BackwardWeights, reads: list[Read], step: int, n: int, microbatch: Any, loss: Loss
    ) -> Tensor:
        with self.dropout.at(step, n), beside.saving():
            share = loss(self.model, microbatch)
        beside.read(reads)
        share.backward()
        return share.detach()

    def _run_recomputing(self, step: int, n: int, microbatch: Any, loss: Loss) -> Tensor:
        assert self.segments is not None
        with self.dropout.at(step, n), self.segments.keeping_inputs() as model:
            share = loss(model, microbatch)
        self.weights.load(self.method.recompute(step, n))
        with self.dropout.at(step, n), self.segments.recomputing() as model:
            again = loss(model, microbatch)
        self.weights.load(self.method.backward(step, n), images.BACKWARD)
        self.segments.backward(again)
        return share

    @contextmanager
    def evaluation(self) -> Iterator[nn.Module]:
        """The model in eval mode at version t, without gradients; afterwards everything is as before."""
        self.flat.check()
        self.weights.load_current()
        training = [module for module in self.model.modules() if module.training]
        self.model.eval()
        try:
            with torch.no_grad():
                yield self.model
        finally:
            for module in training:
                module.training = True

    def flat_weights(self) -> list[Tensor]:
        """A copy of version t of each stage's weights, its parameters flattened in unit order."""
        self.weights.load_current()
        return self.flat.compact()

    def finite(self) -> bool:
        """Whether all weights of version t are finite (waits for the device)."""
        self.weights.load_current()
        return bool(torch.isfinite(self.flat.weights).all())

    def memory(self) -> dict[str, int]:
        """Bytes held: `weights` (the live ones), `gradients`, `history` (their rings), `buffers` and `rings` (the
        method's), `images` (twice the weights once some have been copied through them)."""
        return {
            "weights": sum(tensor.nbytes for tensor in self.flat.copies),
            "gradients": sum(tensor.nbytes for tensor in self.flat.sums),
            **self.weights.memory(),
        }

    def state_dict(self) -> dict:
        """All that training bit for bit onwards needs: weights and their history, optimizer, method, model buffers.

        The tensors are the ones in use, not copies: save the state, or copy it, before the next step.
        """
        return {
            "shape": self._shape,
            **self.weights.state_dict(),
            "buffers": dict(self.model.named_buffers()),
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict) -> None:
        """Continue where `state_dict` was taken. Raises UserError, before anything changes, for another pipeline."""
        for name, mine in self._shape.items():
            if state["shape"][name] != mine:
                raise UserError(
                    f"the checkpoint was made with pipeline.{name}={state['shape'][name]}, this pipeline has {mine}; "
                    "go on with the setting of the checkpoint"
                )
        self.weights.load_state_dict(state)
        for name, buffer in self.model.named_buffers():
            buffer.copy_(state["buffers"][name])


def _is_compiled(module: nn.Module) -> bool:
    """By torch.compile(module) or module.compile()."""
    return hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None
