"""What does each rank of a pipeline hold, before anything is started? By the schedule's numbers; nothing is measured.

A rank holds a contiguous part of the stages. Weights are counted in numbers (W where no sizes are known), activations
in microbatches at one stage, at their peak in steady state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipemare_exp.errors import UserError
from pipemare_exp.pipeline.schedule.costs import Costs, optimizer_memory
from pipemare_exp.pipeline.schedule.versions import history_depth, slot_delays


@dataclass(frozen=True)
class RankPlan:
    """One rank: its node, its first and last stage, its part of the weights, and for every method what it holds.

    `held` counts live weights, gradients, optimizer state, past versions and copies, and the method's buffers, in the
    unit of `weights`; `activations` are summed over the rank's stages.
    """

    rank: int
    node: int
    first: int
    last: int
    weights: float
    held: dict[str, float]
    activations: dict[str, int]


def ranks_of(stages: int, ranks: int) -> list[range]:
    """The stages of each rank: contiguous, in numbers that differ by at most one. UserError for more ranks."""
    if not 1 <= ranks <= stages:
        raise UserError(
            f"engine.ranks={ranks} with {stages} stages: a rank holds at least one stage; take 1 to {stages} ranks"
        )
    return [range(r * stages // ranks, (r + 1) * stages // ranks) for r in range(ranks)]


def beside(declared: Costs, delay: int, microbatches: int) -> float:
    """Sets of a stage's weights that the runtime keeps beside the live ones, L = `delay`.

    A method that holds several versions at every stage (2BW) has all of them there, as it overwrites the live weights
    with an older one. With stashing there are ceil(L/N) past versions and the current one, with a buffer (T2's delta)
    the buffer and the current version: a backward overwrites the live weights, and w - d delta + d delta is not w.
    Nothing of the last two at a stage without a delay.
    """
    if declared.versions > 1:
        return declared.versions
    if delay == 0 or declared.flushed:
        return 0.0
    past = history_depth(delay, microbatches) if declared.stash else 0
    return past + declared.buffers + (1 if declared.stash or declared.buffers else 0)


def held_activations(declared: Costs, delay: int, microbatches: int, slots: str) -> int:
    """Microbatches whose activations a stage holds at its peak: N where every minibatch is flushed, else L in duplex
    and L + 1 in alternating slots."""
    if declared.flushed:
        return microbatches
    return delay if slots == "duplex" else delay + 1


def plan_ranks(
    methods: dict[str, Costs],
    stages: int,
    microbatches: int,
    ranks: int,
    per_node: int,
    optimizer: str = "sgd_momentum",
    slots: str = "duplex",
    sizes: Sequence[float] | None = None,
) -> list[RankPlan]:
    """Every rank of a pipeline on nodes of `per_node` ranks. `sizes`: the weights of each stage (None: W/P each)."""
    weights = [1 / stages] * stages if sizes is None else list(sizes)
    delays = slot_delays(stages, slots)
    always = 2 + optimizer_memory(optimizer)  # live weights and gradients
    plans = []
    for rank, part in enumerate(ranks_of(stages, ranks)):
        held = {
            name: sum(weights[s] * (always + beside(declared, delays[s], microbatches)) for s in part)
            for name, declared in methods.items()
        }
        kept = {
            name: sum(held_activations(declared, delays[s], microbatches, slots) for s in part)
            for name, declared in methods.items()
        }
        total = sum(weights[s] for s in part)
        plans.append(RankPlan(rank, rank // per_node, part.start, part.stop - 1, total, held, kept))
    return plans
