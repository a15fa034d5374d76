"""Synchronous schedules that are one rule with other numbers: 1F1B, interleaved 1F1B, ZB-H1 and ZB-H2.

A device first runs some forwards ahead, then a forward and a backward in turn, then the backwards that are left. With v
stages a device goes through the microbatches in rounds: a round's forwards at its first stage, then at its second, and
so on, and backwards in the reverse order of the stages. Where the backward is split, the weight gradients follow the
input gradients at a distance, which fills the slots in which a device would else wait.
"""

from __future__ import annotations

from pipemare_exp.errors import UserError
from pipemare_exp.pipeline.schedule.actions import Op, Schedule
from pipemare_exp.pipeline.schedule.event_walk import Lane
from pipemare_exp.pipeline.schedule.orders.placing import check, synchronous


def one_f_one_b(stages: int, microbatches: int, steps: int) -> Schedule:
    """Synchronous 1F1B: P - s forwards at stage s, then backward and forward in turn; flushed after each
    minibatch.

    As long as GPipe, with at most min(P - s, N) microbatches in flight (Narayanan et al., "PipeDream-Flush",
    arXiv 2006.09503). Alternating slots.
    """
    return synchronous("1f1b", lambda s: in_rounds(s, stages, microbatches), stages, microbatches, steps)


def interleaved(devices: int, microbatches: int, steps: int, virtual: int = 2) -> Schedule:
    """Interleaved 1F1B: device k holds the v = `virtual` stages k, k + P, ..., k + (v-1) P of the P v stages.

    Fill and drain are made of stages a v-th as long: (P-1)(F+B)/v of a minibatch's time is a bubble, for v times the
    messages and more activations (Narayanan et al., "Megatron-LM", arXiv 2104.04473). N must be a multiple of the
    number of rounds, which is floor(N/P) and at least 1. UserError where it is not. Alternating slots.
    """
    check(devices, microbatches, steps, "alternating", steps, None)
    if virtual < 2:
        raise UserError(f"virtual={virtual}; interleaved 1F1B has at least 2 stages on a device (1 is 1f1b)")
    check_rounds(devices, microbatches)
    ahead = 2

    def lane(device: int) -> Lane:
        return in_rounds(device, devices, microbatches, virtual, ahead)

    placement = tuple(range(devices)) * virtual
    return synchronous("interleaved", lane, devices, microbatches, steps, placement)


def zb_h1(stages: int, microbatches: int, steps: int) -> Schedule:
    """ZB-H1: 1F1B with a split backward, stage s running its weight gradients s microbatches later.

    (P-1)(F+I-W) of a minibatch's time is a bubble, a third of 1F1B's if the three take equally long. Every stage holds
    up to P microbatches, as many as 1F1B's fullest (Qi et al., arXiv 2401.10241). Alternating slots.
    """
    return synchronous("zb_h1", lambda s: in_rounds(s, stages, microbatches, defer=s), stages, microbatches, steps)


def zb_h2(stages: int, microbatches: int, steps: int) -> Schedule:
    """ZB-H2: ZB-H1 with twice as many forwards ahead and weight gradients 2s microbatches later.

    (P-1)(F+I-2W) of a minibatch's time is a bubble, none if the three take equally long and N >= 2P-1, for up to 2P-1
    microbatches at every stage (Qi et al., arXiv 2401.10241). Alternating slots.
    """

    def lane(stage: int) -> Lane:
        return in_rounds(stage, stages, microbatches, hop=2, defer=2 * stage)

    return synchronous("zb_h2", lane, stages, microbatches, steps)


def check_rounds(devices: int, microbatches: int) -> None:
    """UserError unless N microbatches make rounds of one length on P devices; it names the nearest N that do."""
    if microbatches % _rounds(devices, microbatches):
        near = [n for n in nearest(devices, microbatches) if n > 0]
        raise UserError(
            f"microbatches={microbatches} on {devices} devices: interleaved 1F1B runs them in "
            f"{_rounds(devices, microbatches)} rounds of one length; the nearest numbers that work are "
            f"{' and '.join(map(str, near))}"
        )


def nearest(devices: int, microbatches: int) -> tuple[int, int]:
    """The next smaller and the next larger number of microbatches that make rounds of one length."""
    below, above = microbatches - 1, microbatches + 1
    while below % _rounds(devices, below):
        below -= 1
    while above % _rounds(devices, above):
        above += 1
    return below, above


def _rounds(devices: int, microbatches: int) -> int:
    return max(1, microbatches // devices)


def in_rounds(
    device: int, devices: int, microbatches: int, virtual: int = 1, hop: int = 1, defer: int | None = None
) -> Lane:
    """What `device` runs for one minibatch, microbatches counted from 0.

    `hop`: how many more forwards ahead a device has than the next one. `defer`: the backward is split and the weight
    gradient comes so many input gradients later; None: it runs whole.
    """
    per_round = microbatches // _rounds(devices, microbatches) if virtual > 1 else microbatches
    total = microbatches * virtual
    ahead = min((virtual - 1) * per_round + hop * (devices - 1 - device), total)

    def visit(k: int, last_first: bool) -> tuple[int, int]:
        """(stage, microbatch) of the k-th forward, or of the k-th backward."""
        turn, within = divmod(k, per_round)
        around, local = divmod(turn, virtual)
        stage = (virtual - 1 - local if last_first else local) * devices + device
        return stage, around * per_round + within

    forwards: Lane = [(Op.FORWARD, *visit(k, False)) for k in range(total)]
    lane = forwards[:ahead]
    for k in range(total):
        lane += forwards[ahead + k : ahead + k + 1]
        lane.append((Op.BACKWARD if defer is None else Op.INPUT_GRADIENT, *visit(k, True)))
        if defer is not None and k >= defer:
            lane.append((Op.WEIGHT_GRADIENT, *visit(k - defer, True)))
    if defer is not None:
        lane += [(Op.WEIGHT_GRADIENT, *visit(k, True)) for k in range(max(0, total - defer), total)]
    return lane
