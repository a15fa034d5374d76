"""What every schedule costs on P devices with N microbatches, all found by walking it.

One row a schedule: how long a step takes, how much a device holds, and how late the weights are that it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from pipemare_exp.errors import UserError
from pipemare_exp.pipeline.schedule import orders
from pipemare_exp.pipeline.schedule.actions import Schedule
from pipemare_exp.pipeline.schedule.costs import Costs
from pipemare_exp.pipeline.schedule.timing import Times, walk_times
from pipemare_exp.pipeline.schedule.versions import slot_delays, walk

Make = Callable[[int, int, int], Schedule]

SYNCHRONOUS: Mapping[str, tuple[str, Make, int]] = {
    "gpipe": ("GPipe", orders.gpipe, 1),
    "1f1b": ("1F1B", orders.one_f_one_b, 1),
    "interleaved": ("interleaved 1F1B", orders.interleaved, 2),
    "zb_h1": ("ZB-H1", orders.zb_h1, 1),
    "zb_h2": ("ZB-H2", orders.zb_h2, 1),
    "zb_v": ("ZB-V", orders.zb_v, 2),
    "dualpipe_v": ("DualPipe-V", orders.dualpipe_v, 2),
}
"""Name: (what tables call it, what makes it, the stages of a device)."""

UNIT_TIMES = Times()


@dataclass(frozen=True)
class Row:
    """One schedule on P devices with N microbatches; everything is None but `why_not` where it cannot be had.

    stages       of the model, P or a multiple
    step         time of a step in steady repetition, in the unit of `Times`
    utilization  busy over available time of a device; 1 minus the bubble
    activations  peak, summed over the devices, in microbatches at one device (of all its stages)
    fullest      peak on the fullest device
    weights      versions of the weights, stash on average over time and buffers such as T2's delta, in W
    delay        (tau of the first stage, mean over the stages) of forwards, in steps; (0, 0) for a synchronous one
    """

    name: str
    title: str
    stages: int | None = None
    step: float | None = None
    utilization: float | None = None
    activations: float | None = None
    fullest: float | None = None
    weights: float | None = None
    delay: tuple[float, float] | None = None
    why_not: str | None = None


def compare(
    devices: int,
    microbatches: int,
    asynchronous: Mapping[str, tuple[str, Costs]],
    slots: str = "duplex",
    times: Times = UNIT_TIMES,
    units: int | None = None,
    synchronous: bool = True,
) -> list[Row]:
    """A row for every synchronous schedule, then one for each of `asynchronous`: name -> (title, costs).

    `slots` are those of the asynchronous ones. `units`: how many stages the model can be cut into, if there is a model.
    `synchronous=False` leaves out the synchronous rows. UserError for numbers of which nothing can be made.
    """
    rows = []
    for name, (title, make, virtual) in SYNCHRONOUS.items() if synchronous else ():
        why_not = _too_many(devices, virtual, units)
        if why_not is None:
            try:
                rows.append(_synchronous(name, title, make, devices, microbatches, times))
                continue
            except UserError as error:
                if name == "gpipe":  # which can be made of all numbers that a schedule can be made of
                    raise
                why_not = str(error)
        rows.append(Row(name, title, why_not=why_not))
    for name, (title, declared) in asynchronous.items():
        rows.append(_asynchronous(name, title, declared, devices, microbatches, slots, times))
    return rows


def _too_many(devices: int, virtual: int, units: int | None) -> str | None:
    stages = devices * virtual
    if units is None or stages <= units or virtual == 1:
        return None
    most = units // virtual
    remedy = f"{most} devices are the most" if most else "no number of devices works"
    return f"{virtual} stages on each of {devices} devices are {stages}, the model has {units} weight units; {remedy}"


def _synchronous(name: str, title: str, make: Make, devices: int, microbatches: int, times: Times) -> Row:
    schedule = make(devices, microbatches, 1)
    step = walk_times(schedule, times, runs=2).step(0, 1)  # the second step, which every later one repeats
    peaks = schedule.device_peaks()
    busy = microbatches * times.microbatch / step
    return Row(name, title, schedule.stages, step, busy, sum(peaks), max(peaks), 1.0, (0.0, 0.0))


def _asynchronous(
    name: str, title: str, declared: Costs, stages: int, microbatches: int, slots: str, times: Times
) -> Row:
    each, held, late = _walked(stages, slots, times)
    memory = declared.memory(stages, microbatches, slots=slots)
    weights = memory.weights + memory.stash_uniform + memory.buffers
    delay = (late[0] / microbatches, sum(late) / len(late) / microbatches)
    busy = times.microbatch / each
    return Row(name, title, stages, microbatches * each, busy, float(sum(held)), float(max(held)), weights, delay)


@lru_cache(maxsize=64)
def _walked(stages: int, slots: str, times: Times) -> tuple[float, list[int], list[int]]:
    """(time of a microbatch, peaks, delays in microbatches) of a schedule that is never flushed.

    Where nothing is flushed no operation's moment depends on N, so the walk has minibatches of one microbatch. Messages
    that a stage waits for come in a rhythm of P microbatches, so the time is an average over a multiple of P.
    """
    fill = max(slot_delays(stages, slots)) + 1
    schedule = orders.pipemare(stages, 1, 3 * fill + 1, slots)
    read = walk(schedule).forward
    late = [fill - read[stage][fill][0] for stage in range(stages)]
    return walk_times(schedule, times).step(fill, 2 * fill), schedule.peak_activations(), late
