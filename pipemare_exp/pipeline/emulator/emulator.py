"""The emulator: trains on one device while every pass reads exactly the weights that the method prescribes.

A parameter never moves: it is a view of the live weights, into which the weights that a pass reads are copied before it
runs. For microbatch n of step t, at one stage with a ring of three versions:

    ring (history)           w_{t-2}     w_{t-1}     w_t          delta (T2)
                                |                     |              |
                        1. the forward's        2. the backward's, w_t - d delta
                                |                     |
    staged copies          forwards' copy       backwards' copy          (where there are many small stages)
                                |                     |
    live weights      ---- w_{t-2} ----+---- w_t - d delta ----+----     (the parameters)
                          forward n         backward n

    after the last microbatch    3. live weights <- w_t;  4. optimizer.step();  5. ring <- live weights, as w_{t+1}

Between 1 and 2 the weights change behind autograd's back. The backward then takes its Jacobian products with the second
weights at the activations that the first ones left. That is right only where the tensors that operations saved for the
backward are the parameters themselves. Under autocast they are cast copies, and compiled graphs keep what they like, so
both are refused. The ways to run a microbatch, one of which leaves out the copy at 2, are in ways.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from pipemare_exp.errors import UserError
from pipemare_exp.pipeline.clipping import Clip, check_clip
from pipemare_exp.pipeline.emulator.mean_loss import MeanLossWatch
from pipemare_exp.pipeline.emulator.staleness import Diagnosis
from pipemare_exp.pipeline.emulator.ways import Beside, Execution, choose
from pipemare_exp.pipeline.engine import Loss
from pipemare_exp.pipeline.method import Method
from pipemare_exp.pipeline.model.dropout import KeyedDropout
from pipemare_exp.pipeline.observed import Observed, Staleness, finite_buffers, non_finite, total_norm
from pipemare_exp.pipeline.shape import Pipeline
from pipemare_exp.pipeline.stage_weights import StageWeights
from pipemare_exp.pipeline.weights import staged_copies
from pipemare_exp.pipeline.weights.history import DeviceHistory
from pipemare_exp.pipeline.weights.host_history import HostHistory
from pipemare_exp.pipeline.weights.optimizer_groups import MakeOptimizer
from pipemare_exp.pipeline.weights.precision import flat_weights


class Emulator:
    """Runs a method on `model`, cut into the stages of `pipeline`, one minibatch of N microbatches at a time.

    - `method`: a new object, which the emulator binds;
    - `optimizer`: makes a torch optimizer from one parameter group per stage (see weights/optimizer_groups.py);
    - `seed`: of the dropout masks;
    - `clip`: of the summed gradients (see clipping.py). A global norm cannot be had in a real asynchronous pipeline,
      where stages update at different moments;
    - `execution`: how it computes, which changes time and memory, and with `precision` the rounding.

    The model must have its final device, dtype and memory format, and must not be moved or converted afterwards. It
    belongs to this emulator from now on.
    """

    def __init__(
        self,
        model: nn.Module,
        pipeline: Pipeline,
        method: Method,
        optimizer: MakeOptimizer,
        *,
        seed: int = 0,
        clip: Clip = None,
        execution: Execution | None = None,
    ) -> None:
        check_clip(clip)
        if any(_is_compiled(module) for module in model.modules()):
            raise UserError("a compiled model cannot be emulated: its backward does not read the swapped weights")
        hooks = model._forward_pre_hooks.values()
        if any(getattr(hook, "__func__", None) is Emulator._refuse_autocast for hook in hooks):
            raise UserError(
                f"this {type(model).__name__} already belongs to an emulator, which holds its weights; build a new "
                "model for every emulator"
            )
        execution = execution or Execution()
        self.model, self.pipeline, self.method = model, pipeline, method
        self._statistics = finite_buffers(model)
        self._max_delay = 0
        self._staleness: Staleness | None = None
        self.flat = flat_weights(execution.precision, model, pipeline.stage_parameters, pipeline.split)
        stages = self.flat.stages
        method.bind(pipeline.shape, [stage.detach() for stage in stages])
        dropout = KeyedDropout(model, seed, self.flat.weights.device)
        way = choose(execution, pipeline, self.flat, dropout.draws())
        on_host = execution.history == "host"
        self.history = (HostHistory if on_host else DeviceHistory)(stages, method.depths())
        staged = way is not Beside and not on_host and len(stages) >= 2 * staged_copies.FEWEST
        self.weights = StageWeights(self.flat, method, optimizer, self.history, clip, staged)
        self.optimizer = self.weights.optimizer.torch
        self.way = way(model, pipeline, self.weights, dropout, execution)
        self._mean_loss = MeanLossWatch(model) if pipeline.microbatches > 1 else None
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

    def step(
        self,
        microbatches: Sequence[Any | None],
        loss: Loss,
        rate: float,
        *,
        observed: bool = False,
        diagnosed: bool = False,
    ) -> Tensor:
        """One minibatch and its update at base rate `rate`; returns the minibatch's loss, detached, on the device.

        `loss(model, microbatch)` is the microbatch's share, already divided by the count of the whole minibatch. None
        stands for an empty microbatch: it keeps its slot and does nothing. `observed`, `diagnosed`: what `observed()`
        is to tell of this step. Diagnosing copies all weights three times and more.
        """
        count = self.pipeline.microbatches
        if len(microbatches) != count:
            raise ValueError(f"{len(microbatches)} microbatches given, the pipeline has {count}")
        self.flat.check()
        self._refuse_autocast()
        step = self.version
        self.flat.gradients.zero_()
        total = torch.zeros((), device=self.flat.weights.device)
        reads = [self.method.forward(step, n) for n in range(count)]
        diagnosis = Diagnosis(self.weights, reads) if diagnosed else None
        for n, microbatch in enumerate(microbatches):
            if microbatch is None:
                continue
            self.weights.load(reads[n], staged_copies.FORWARD)
            if n + 1 < count:
                self.history.prefetch(reads[n + 1])
            share = self.way.run(step, n, microbatch, loss)
            self.weights.collect(step, n)
            if self._mean_loss is not None:
                self._look_at(microbatch, share, microbatches)
            total = total + share
        self.weights.update(step, rate, observed or diagnosed)
        if observed or diagnosed:
            self._max_delay = max(step - one[stage].version for one in reads for stage in self.weights.owned)
            self._staleness = None if diagnosis is None else diagnosis.after_update()
        return total

    def observed(self) -> Observed:
        """What was noted of the last step that was observed or diagnosed (waits for the device)."""
        norms = self.weights.grad_norms
        if norms is None:
            raise RuntimeError("no step was observed: step(..., observed=True) comes first")
        return Observed(total_norm(norms.tolist()), self._max_delay, self._staleness)

    def _look_at(self, microbatch: Any, share: Tensor, microbatches: Sequence[Any | None]) -> None:
        """Once, at a microbatch that is not all of its minibatch: is its loss a mean?"""
        if self._mean_loss is not None and sum(one is not None for one in microbatches) > 1:
            self._mean_loss.look(microbatch, share)
            self._mean_loss = None

    def _refuse_autocast(self, *_: Any) -> None:
        if self.model.training and torch.is_autocast_enabled(self.flat.weights.device.type):
            raise UserError("autocast is on: its cast copies would be what the backward reads; switch it off")

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

    def non_finite(self) -> dict[str, int | None]:
        """How many numbers of version t are not finite (see `Engine`); waits for the device."""
        self.weights.load_current()
        buffers = dict(self.model.named_buffers())
        return {
            "weights": non_finite([self.flat.weights]),
            "buffers": non_finite(buffers[name] for name in self._statistics if name in buffers),
            **self.weights.non_finite(),
        }

    def memory(self) -> dict[str, int]:
        """Bytes: `weights` (the live ones), `gradients`, and what is beside them (see `StageWeights.memory`)."""
        return {
            "weights": sum(tensor.nbytes for tensor in self.flat.copies),
            "gradients": sum(tensor.nbytes for tensor in [*self.flat.sums, *self.weights.sums]),
            **self.weights.memory(),
        }

    def _shape(self) -> dict[str, Any]:
        """What a checkpoint's pipeline must have in common with this one."""
        pipeline = self.pipeline
        return {
            "stages": len(pipeline.boundaries),
            "boundaries": list(pipeline.boundaries),
            "microbatches": pipeline.microbatches,
            "slots": pipeline.slots,
            "segment": pipeline.segment,
            "split": pipeline.split,
        }

    def state_dict(self) -> dict:
        """All that training bit for bit onwards needs: weights and their history, optimizer, method, model buffers.

        The tensors are the ones in use, not copies: save the state, or copy it, before the next step.
        """
        return {
            "shape": self._shape(),
            **self.weights.state_dict(),
            "buffers": dict(self.model.named_buffers()),
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict) -> None:
        """Continue where `state_dict` was taken. Raises UserError, before anything changes, for another pipeline."""
        for name, mine in self._shape().items():
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
