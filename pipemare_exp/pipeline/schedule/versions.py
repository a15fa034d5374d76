"""Which version of its weights a stage reads: in closed form, and by executing a schedule's actions.

Version k of a stage's weights is what k updates made of them. Stages are numbered from 0, so that the paper's
2(P - i) + 1 is 2(P - 1 - s) + 1 here. g = t N + n is microbatch n of step t. Indices of nested lists are
[stage][step][microbatch] throughout.
"""

from __future__ import annotations

from dataclasses import dataclass

from pipemare_exp.pipeline.schedule.actions import Op, Schedule, check_slots, recompute_segment

Versions = list[list[list[int]]]
"""[stage][step][microbatch]"""


def slot_delays(stages: int, slots: str = "duplex") -> list[int]:
    """L_s: backwards of other microbatches that a stage has yet to run when it forwards one, in steady state.

    Duplex slots: 2(P - 1 - s) + 1, which is also the number of slots from forward to backward. Alternating
    slots: P - 1 - s.
    """
    check_slots(slots)
    if slots == "duplex":
        return [2 * (stages - 1 - s) + 1 for s in range(stages)]
    return [stages - 1 - s for s in range(stages)]


def mean_delays(stages: int, microbatches: int, slots: str = "duplex") -> list[float]:
    """tau_fwd = L_s / N: mean delay, in steps, of the weights that forwards read once the pipe is full."""
    return [delay / microbatches for delay in slot_delays(stages, slots)]


def deferred_delays(stages: int, defer: int) -> tuple[list[int], list[int]]:
    """(L_s of forwards, of input gradients) where weight gradients come `defer` = k microbatches late.

    Alternating slots. An update waits for weight gradients, so every pass sees k microbatches fewer than it would:
    L_s = P - 1 - s + k, and the input gradient, which would read version t, has a delay of k. Their difference, over N
    the d_s of T2, stays P - 1 - s. k = 0 is a split backward whose two halves follow each other.
    """
    return [delay + defer for delay in slot_delays(stages, "alternating")], [defer] * stages


def recompute_delays(stages: int, segment: int) -> list[int]:
    """Slots from recomputation to backward at each stage, in segments of S; tau_recomp is this over N."""
    return [2 * (recompute_segment(stages, segment, s)[-1] - s) + 1 for s in range(stages)]


def history_depth(slot_delay: int, microbatches: int) -> int:
    """ceil(L/N): the most steps by which a forward's version is behind the step it belongs to."""
    return -(-slot_delay // microbatches)


def forward_version(g: int, slot_delay: int, microbatches: int, start: int = 0) -> int:
    """The version that the forward of microbatch g reads at a stage with delay L.

    max(M, floor((g - L) / N)) from step M = `start` on; t before it, where steps run flushed. With a
    recomputation's delay for L: the version that the recomputation of g reads.
    """
    step = g // microbatches
    return step if step < start else max(start, (g - slot_delay) // microbatches)


def forward_versions(stages: int, microbatches: int, steps: int, slots: str = "duplex", start: int = 0) -> Versions:
    """`forward_version` for all stages, steps and microbatches of an asynchronous schedule."""
    return _versions(slot_delays(stages, slots), microbatches, steps, start)


def recompute_versions(stages: int, microbatches: int, steps: int, segment: int, start: int = 0) -> Versions:
    """The versions that recomputations read (duplex slots), in segments of S stages.

    Steps before `start` run flushed and recompute nothing; their entries are t, which any recomputation would
    read.
    """
    return _versions(recompute_delays(stages, segment), microbatches, steps, start)


def _versions(delays: list[int], microbatches: int, steps: int, start: int) -> Versions:
    return [
        [
            [forward_version(t * microbatches + n, delay, microbatches, start) for n in range(microbatches)]
            for t in range(steps)
        ]
        for delay in delays
    ]


@dataclass(frozen=True)
class WalkedVersions:
    """What a schedule's execution reads; versions as [stage][step][microbatch].

    forward    read by forwards
    backward   read by backwards and input gradients: what is current then or, with weight stashing, what the forward
               read
    recompute  read by recomputations (None in the flushed steps); None for a schedule without them
    kept       per stage, the most versions of its weights that are needed at one moment, the current one included

    A version is needed while it is current and, with weight stashing, until the last backward that reads it. Without
    stashing `kept` is 1: a late forward reads what is current then. (An emulator runs a step's microbatches one after
    the other and so needs ceil(L/N) past versions of any asynchronous method.)
    """

    forward: Versions
    backward: Versions
    recompute: list[list[list[int | None]]] | None
    kept: list[int]


def walk(schedule: Schedule) -> WalkedVersions:
    """Executes each stage's actions in order, with a counter for its weights, and notes what is read."""
    stages, per_step, steps = schedule.stages, schedule.microbatches, schedule.steps

    def table(value):
        return [[[value] * per_step for _ in range(steps)] for _ in range(stages)]

    forward, backward, recompute = table(-1), table(-1), table(None)
    kept = []
    for s, column in enumerate(schedule.columns):
        version, most = 0, 1
        stash: dict[int, int] = {}
        for action in column:
            if action.op is Op.UPDATE:
                version += 1
            else:
                t, n = action.step, action.microbatch % per_step
                if action.op is Op.FORWARD:
                    forward[s][t][n] = version
                    if schedule.stashes:
                        stash[action.microbatch] = version
                elif action.op is Op.RECOMPUTE:
                    recompute[s][t][n] = version
                elif action.op is not Op.WEIGHT_GRADIENT:  # that multiplies what its input gradient left; reads nothing
                    backward[s][t][n] = stash.pop(action.microbatch, version)
            most = max(most, len({version, *stash.values()}))
        kept.append(most)
    return WalkedVersions(forward, backward, recompute if schedule.segment is not None else None, kept)
