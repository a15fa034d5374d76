"""What a method costs by the model: utilization, time, memory and activations as named formulas.

A method declares its `Costs`; everything else here follows from them. Nothing is measured. Memory is in multiples of W,
the size of all weights; activations are in microbatch-at-one-stage units (one microbatch's activations at one stage),
summed over the stages, each counted at its peak in steady state. P stages, N microbatches in a minibatch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pipemare_exp.errors import UserError, suggest
from pipemare_exp.pipeline.schedule.actions import recompute_segment
from pipemare_exp.pipeline.schedule.versions import history_depth, mean_delays, recompute_delays, slot_delays

OPTIMIZER_STATE = {"sgd": 0, "sgd_momentum": 1, "adamw": 2}
"""Optimizer state in multiples of W: momentum; first and second moment."""


def gpipe_ratio(stages: int, microbatches: int) -> float:
    """(N+P-1)/N: how much longer a GPipe step takes than an asynchronous one, all operations being of one
    length.

    The paper's "pipeline utilization over GPipe": 4.3 for P = 107, N = 32 and 14.3 (14.25) for N = 8.
    """
    return (microbatches + stages - 1) / microbatches


def refill_time(stages: int, microbatches: int, slots: str = "duplex") -> float:
    """Time in asynchronous steps that passes, once, while an asynchronous pipeline fills: at the start, or after T3.

    T steps from an empty pipeline to the last update take T + (2P-1)/N in duplex slots, T + (P-1)/N in alternating
    ones.
    No part of `modelled_time`, whose steps are those of steady state.
    """
    return (2 * stages - 1 if slots == "duplex" else stages - 1) / microbatches


def modelled_time(stages: int, microbatches: int, steps: int, flushed_steps: int = 0) -> float:
    """Time of `steps` steps in asynchronous steps, of which the first `flushed_steps` take (N+P-1)/N each.

    The paper's rule. The pipeline's filling, once, is left out: see `refill_time`.
    """
    if not 0 <= flushed_steps <= steps:
        raise UserError(f"flushed_steps={flushed_steps} with steps={steps}; allowed: 0 to {steps}")
    return flushed_steps * gpipe_ratio(stages, microbatches) + (steps - flushed_steps)


def optimizer_memory(optimizer: str) -> float:
    """Optimizer state in W: sgd 0, sgd_momentum 1, adamw 2 (its scalar counters are not counted)."""
    if optimizer not in OPTIMIZER_STATE:
        raise UserError(
            f"optimizer {optimizer!r}; allowed: {', '.join(OPTIMIZER_STATE)}{suggest(optimizer, OPTIMIZER_STATE)}"
        )
    return float(OPTIMIZER_STATE[optimizer])


def stash_uniform(stages: int, microbatches: int, slots: str = "duplex") -> float:
    """PipeDream's stashed weights in W with stages of equal size: the mean over stages of tau_s = L_s/N.

    The paper's account, on average over time: P/N in duplex slots (and (P-1)/(2N) in alternating slots).
    Whole versions are kept in fact, up to ceil(L_s/N) besides the current one: `versions.walk(...).kept`.
    """
    return sum(slot_delays(stages, slots)) / (stages * microbatches)


def stash_model(sizes: Sequence[int], microbatches: int, slots: str = "duplex") -> float:
    """PipeDream's stashed weights in W with stages of `sizes` weights: sum(tau_s size_s) / sum(size_s).

    On average over time, as `stash_uniform`. Real networks are larger towards the loss, where delays are
    short.
    """
    delays = mean_delays(len(sizes), microbatches, slots)
    return sum(delay * size for delay, size in zip(delays, sizes, strict=True)) / sum(sizes)


@dataclass(frozen=True)
class Memory:
    """A method's memory besides activations, in multiples of W.

    weights        the whole versions of the weights that every stage holds
    gradients      their sum over the microbatches of a minibatch, 1
    optimizer      the optimizer's state
    stash_uniform  past versions kept for backwards, stages of equal size
    stash_model    the same, stages of the model's sizes; None without sizes
    buffers        the method's own tensors of the weights' size: T2's delta
    """

    weights: float
    gradients: float
    optimizer: float
    stash_uniform: float
    stash_model: float | None
    buffers: float

    def total(self) -> float:
        """All of it, with the model's stash where it is known and the uniform one otherwise."""
        stash = self.stash_uniform if self.stash_model is None else self.stash_model
        return self.weights + self.gradients + self.optimizer + stash + self.buffers


@dataclass(frozen=True)
class Costs:
    """What a method declares about its costs; the default: asynchronous, keeping the current weights only.

    flushed   every minibatch fills and drains the pipeline, which runs in alternating slots
    versions  whole versions of the weights that every stage holds, the current one included
    stash     past versions kept for backwards, per step of a stage's delay: 1 with weight stashing
    buffers   further tensors of the weights' size, such as T2's delta
    """

    flushed: bool = False
    versions: float = 1.0
    stash: float = 0.0
    buffers: float = 0.0

    def utilization(self, stages: int, microbatches: int) -> float:
        """Busy over available operation slots in steady state: N/(N+P-1) if flushed, 1 for what never is.

        Fill and drain recur in every flushed minibatch and count; an asynchronous method's occur once and do not.
        """
        return microbatches / (microbatches + stages - 1) if self.flushed else 1.0

    def memory(
        self,
        stages: int,
        microbatches: int,
        optimizer: str = "sgd_momentum",
        slots: str = "duplex",
        sizes: Sequence[int] | None = None,
    ) -> Memory:
        """The `Memory`; `sizes`: weights of each of the P stages. UserError for an unknown optimizer."""
        if sizes is not None and len(sizes) != stages:
            raise UserError(f"{len(sizes)} stage sizes for {stages} stages; give one size per stage")
        return Memory(
            weights=self.versions,
            gradients=1.0,
            optimizer=optimizer_memory(optimizer),
            stash_uniform=self.stash * stash_uniform(stages, microbatches, slots),
            stash_model=None if sizes is None else self.stash * stash_model(sizes, microbatches, slots),
            buffers=self.buffers,
        )

    def activations(self, stages: int, microbatches: int, slots: str = "duplex") -> int:
        """Activations held without recomputation.

        Flushed: P N (a minibatch's microbatches, at every stage). Asynchronous: a stage holds L_s in duplex slots,
        together P^2, and L_s + 1 = P - s in alternating slots, together P(P+1)/2. Steps that run flushed (T3) hold P N.
        """
        if self.flushed:
            return stages * microbatches
        delays = slot_delays(stages, slots)
        return sum(delays) if slots == "duplex" else sum(delay + 1 for delay in delays)


def memory_ratio(
    stages: int, microbatches: int, optimizer: str = "sgd_momentum", t2: bool = False, slots: str = "duplex"
) -> float:
    """PipeDream's weight and optimizer memory over PipeMare's, stages of equal size.

    Counts weights, optimizer state, stash and, with `t2`, delta; no gradients and no activations. This
    reading of the paper's "up to 2.7x" gives (2 + 107/32)/2 = 2.67 for P = 107, N = 32, momentum, no T2.
    """
    ours = 1.0 + optimizer_memory(optimizer)
    return (ours + stash_uniform(stages, microbatches, slots)) / (ours + (1.0 if t2 else 0.0))


def emulator_memory(
    sizes: Sequence[int],
    depths: Sequence[int],
    estimates: Sequence[bool] | None = None,
    delta: bool = False,
    staged: bool = False,
) -> int:
    """Weights (numbers, not W) that the emulator keeps besides the model's own: the rings of versions,
    delta, and the staged copies of what passes read.

    sum of (depth_s + 1) size_s over the stages with depth_s > 0 past versions or with a backward estimate
    (`estimates`), plus sum of size_s with `delta`, plus twice that with `staged` (on a CPU models below 4 MiB
    have them, see `pipeline/weights/staged_copies.py`). The emulator's own quantity: it runs a step's microbatches
    one after another and so needs past versions of every asynchronous method, and one copy of the current
    version, since versions are copied into the model's storage. No pipeline needs this memory.
    """
    needs = estimates if estimates is not None else [False] * len(sizes)
    ring = sum(
        (depth + 1) * size for size, depth, estimate in zip(sizes, depths, needs, strict=True) if depth > 0 or estimate
    )
    return ring + (int(delta) + 2 * int(staged)) * sum(sizes)


def activations_recomputed(stages: int, segment: int) -> int:
    """Activations held by an asynchronous method in duplex slots that recomputes segments of S stages.

    A stage holds activations for the slots from recomputation to backward, and a segment that begins at stage
    s its input for the L_s - (slots from recomputation to backward) slots before. P S + P^2/S - P where S
    divides P: about 2 P^(3/2) at S = sqrt(P), and P^2 at S = 1 and S = P. The segment at the loss is shorter
    where it does not.
    """
    recomputed, delays = recompute_delays(stages, segment), slot_delays(stages)
    inputs = sum(delays[s] - recomputed[s] for s in range(stages) if recompute_segment(stages, segment, s).start == s)
    return sum(recomputed) + inputs


def sqrt_segment(stages: int) -> int:
    """S = sqrt(P): its floor or its ceiling, whichever holds fewer activations (the floor if equal)."""
    below = math.isqrt(stages)
    candidates = [below] if below**2 == stages else [below, min(below + 1, stages)]
    return min(candidates, key=lambda segment: activations_recomputed(stages, segment))


def recompute_ring(segment: int, microbatches: int) -> int:
    """ceil((2S-1)/N): past estimates that recomputation with T2 keeps, at a segment's first stage."""
    return history_depth(2 * segment - 1, microbatches)
