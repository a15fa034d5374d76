"""`pipemare plan`: what P stages and N microbatches mean for every method, before anything is trained."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import Any

from pipemare_exp import methods, models, settings
from pipemare_exp.arguments import real, whole
from pipemare_exp.commands import plan_ranks, plan_tables
from pipemare_exp.errors import UserError
from pipemare_exp.pipeline.method import RECOMPUTATION
from pipemare_exp.pipeline.schedule import comparison, costs, versions
from pipemare_exp.pipeline.schedule import orders as schedule
from pipemare_exp.pipeline.schedule.actions import SLOT_KINDS
from pipemare_exp.pipeline.schedule.timing import Times
from pipemare_exp.settings import MOST_PARTS

HELP = "delays, versions, utilization, memory and the schedule grid of every method"

EPILOG = """\
examples:
  pipemare plan --stages 4 --microbatches 2 --steps 3      the schedule of every method as a grid
  pipemare plan --model resnet50 --microbatches 32         one stage per weight unit: 107
  pipemare plan --model resnet50 --stages 16 --microbatches 8 --optimizer adamw --json
  pipemare plan --stages 8 --microbatches 8 --times 1,1.2,0.8,0.1     schedules where operations take unequal times
  pipemare plan --model digits_resnet --stages 4 --microbatches 8 --measure    boundaries for engine=runtime
  pipemare plan --model resnet50 --stages 16 --ranks 16 --per-node 8     what each rank of engine=runtime holds

The table of schedules is found by walking each one on P devices: stages of the model; busy, the
share of a device's time in which it computes; the time of a step; activations held at the peak,
together and on the fullest device, in microbatches at one device; W, the weights with stash and
buffers; the delay of the first stage's weights and the mean delay, in steps (0: synchronous).
It is left out where P times the larger of N and P is above 50,000.

Memory is in multiples of W, the size of the weights; activations in microbatches at one
stage, summed over the stages. All numbers are the model's, none is measured.
"""

MOST_ACTIONS = 1_000_000
"""P x N x T: what --steps lays out, action by action."""
MOST_WALKED = 50_000
"""P times the larger of N and P: what the table of schedules walks, in some seconds."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `pipemare plan`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    add = parser.add_argument
    add(
        "--stages", type=whole(high=MOST_PARTS), metavar="P", help="pipeline stages (default: the model's weight units)"
    )
    add(
        "--microbatches",
        type=whole(high=MOST_PARTS),
        metavar="N",
        default=8,
        help="microbatches in a minibatch (default: 8)",
    )
    add("--model", metavar="M", help="take P and the stages' sizes from a model, such as resnet50")
    kinds = ("sgd_momentum", "adamw")
    add("--optimizer", choices=kinds, help="its state counts (default: adamw for a Transformer, else sgd_momentum)")
    add("--slots", default="duplex", choices=SLOT_KINDS, help="slots of asynchronous methods")
    add(
        "--steps", type=whole(high=MOST_ACTIONS), metavar="T", help="show the versions (and grids) of the first T steps"
    )
    times = "what a forward, an input gradient, a weight gradient and a message take (default: 1,1,1,0)"
    add("--times", metavar="F,I,W,C", default="1,1,1,0", help=times)
    add("--delay-scale", type=real(0.0, 100.0), metavar="X", default=1.0, help="of drawn delays (default: 1)")
    add("--measure", action="store_true", help="measure the model's pieces here and propose boundaries for --stages")
    add(
        "--batch",
        type=whole(high=MOST_PARTS),
        default=8,
        metavar="B",
        help="examples of a microbatch for --measure (default 8)",
    )
    plan_ranks.add_arguments(parser)
    add("--json", action="store_true", help="print JSON and nothing else")


def run(args: argparse.Namespace) -> int:
    """Prints the plan. UserError for no P, more stages than the model has units, or too many actions to be shown."""
    if args.measure:
        return _measure(args)
    stages, sizes = _stages(args.stages, args.model)
    if args.steps is not None and stages * args.microbatches * args.steps > MOST_ACTIONS:
        raise UserError(
            f"--steps {args.steps} with P = {stages} and N = {args.microbatches}: P x N x T may be at most "
            f"{MOST_ACTIONS}; take at most --steps {MOST_ACTIONS // (stages * args.microbatches)}"
        )
    optimizer = args.optimizer or _usual_optimizer(args.model)
    if args.ranks is not None:
        return plan_ranks.run(args, stages, sizes, optimizer)
    plan = make_plan(stages, args.microbatches, optimizer, args.slots, args.steps, sizes, args.delay_scale)
    units = None if args.model is None else len(models.unit_sizes(args.model))
    times, rows = _times(args.times), None
    if stages * max(stages, args.microbatches) <= MOST_WALKED:
        rows = comparison.compare(stages, args.microbatches, _asynchronous(), args.slots, times, units)
    if args.json:
        print(json.dumps({**plan, "schedules": rows and [asdict(row) for row in rows]}))
    else:
        plan_tables.show(plan, args.model, sizes, args.steps, rows)
    return 0


def _times(text: str) -> Times:
    """F,I,W,C as `Times`. UserError for anything else."""
    try:
        forward, input_gradient, weight_gradient, communication = map(float, text.split(","))
    except ValueError as error:
        raise UserError(
            f"--times {text}; give four numbers F,I,W,C: what a forward, an input gradient, a weight gradient and a "
            "message take, as in --times 1,1,1,0"
        ) from error
    return Times(forward, input_gradient, weight_gradient, communication)


def _asynchronous() -> dict[str, tuple[str, costs.Costs]]:
    """name -> (title, costs) of the paper's methods that never flush. Later ones run under the same schedules."""
    return {
        name: (kind.title if name == kind.name else name, declared)
        for kind in methods.METHODS.values()
        for name, declared in kind.costs.items()
        if kind.study is None and not declared.flushed
    }


def _usual_optimizer(model: str | None) -> str:
    return "adamw" if model is not None and models.images(model) is None else "sgd_momentum"


def make_plan(
    stages: int,
    microbatches: int,
    optimizer: str = "sgd_momentum",
    slots: str = "duplex",
    steps: int | None = None,
    sizes: list[int] | None = None,
    delay_scale: float = 1.0,
) -> dict[str, Any]:
    """The plan as `--json` prints it.

    `memory.stash_model` is there only with `sizes` (weights per stage), `versions` (of PipeMare, as
    [stage][step][microbatch]) only with `steps`. `activations.sqrt` is null where no recomputation is
    defined: for a flushed method, in alternating slots, and where the method refuses it. `refused` says why the
    method cannot be had with this shape, and is null where it can. `drawn`: the mean delays of
    every stage, after rounding, of the methods that draw them, at `delay_scale`.
    """
    tau = versions.mean_delays(stages, microbatches, slots)
    plan: dict[str, Any] = {
        "stages": stages,
        "microbatches": microbatches,
        "slots": slots,
        "tau_fwd": tau,
        "drawn": {},
        "gpipe_ratio": costs.gpipe_ratio(stages, microbatches),
        "refill": costs.refill_time(stages, microbatches, slots),
        "methods": {},
    }
    for kind in methods.METHODS.values():
        its_slots = kind.only_slots or slots
        for name, declared in kind.costs.items():
            memory = vars(declared.memory(stages, microbatches, optimizer, its_slots, sizes)).copy()
            if sizes is None:
                del memory["stash_model"]
            activations: dict[str, int | None] = {
                "none": declared.activations(stages, microbatches, its_slots),
                "sqrt": None,
            }
            if not declared.flushed and its_slots == "duplex" and RECOMPUTATION in kind.takes:
                activations["sqrt"] = costs.activations_recomputed(stages, costs.sqrt_segment(stages))
            plan["methods"][name] = {
                "utilization": declared.utilization(stages, microbatches),
                "memory": memory,
                "activations": activations,
                "refused": kind.shape_refusal(stages, microbatches, its_slots),
            }
    for name, kind in methods.METHODS.items():
        if "delay_scale" in settings.names(kind.Options):
            drawn = kind.drawn_delays(tau, settings.filled(kind.Options, {"delay_scale": delay_scale}, "method."))
            plan["drawn"] |= {} if drawn is None else {name: drawn}
    if steps is not None:
        walked = versions.walk(schedule.pipemare(stages, microbatches, steps, slots))
        plan["versions"] = {"forward": walked.forward, "backward": walked.backward}
    return plan


def _stages(stages: int | None, model: str | None) -> tuple[int, list[int] | None]:
    """P and, with a model, the number of weights of each stage."""
    if model is None:
        if stages is None:
            raise UserError("neither --stages nor --model; give one, as in --stages 8 or --model resnet50")
        return stages, None
    from pipemare_exp.pipeline.model.units import choose_boundaries  # imports torch

    units = models.unit_sizes(model)
    if stages is None:
        return len(units), units
    if stages > len(units):
        raise UserError(
            f"--stages {stages}, but {model} has {len(units)} weight units; allowed: 1 to {len(units)} stages"
        )
    first = choose_boundaries(units, stages)
    ends = [*first[1:], len(units)]
    return stages, [sum(units[begin:end]) for begin, end in zip(first, ends, strict=True)]


def _measure(args: argparse.Namespace) -> int:
    """Boundaries at which stages take equally long on this machine, by forward and backward times of the pieces."""
    if args.model is None or args.stages is None:
        raise UserError("--measure needs --model and --stages: it cuts that model into so many stages")
    import torch

    from pipemare_exp.pipeline.model.recompute import piece_starts
    from pipemare_exp.pipeline.model.units import pieces, weight_units
    from pipemare_exp.pipeline.runtime.measure import balanced_pieces, piece_seconds

    shape = models.images(args.model)
    if shape is None:
        raise UserError(f"--measure --model {args.model}: it measures image models; this one needs a task's sentences")
    torch.manual_seed(0)
    torch.set_num_threads(1)  # as every rank has
    model: Any = models.build(args.model).train()
    images = torch.randn(args.batch, *shape)
    cut = pieces(model)
    with torch.no_grad():
        model.eval()
        starts = piece_starts(model, weight_units(model, lambda net: net(images[:1])), cut)
        model.train()
    if args.stages > len(cut):
        raise UserError(f"--stages {args.stages}, but {args.model} can be cut into {len(cut)} pieces only")
    seconds = piece_seconds(model, cut, (images,))
    first = balanced_pieces(seconds, args.stages)
    ends = [*first[1:], len(cut)]
    boundaries = [starts[k] for k in first]
    milliseconds = [1e3 * sum(seconds[a:b]) for a, b in zip(first, ends, strict=True)]
    if args.json:
        print(json.dumps({"boundaries": boundaries, "milliseconds": milliseconds}))
        return 0
    plan_tables.show_table(
        ["stage", "first piece", "ms a microbatch"],
        [[str(s), cut[k].name, f"{milliseconds[s]:.2f}"] for s, k in enumerate(first)],
    )
    print(f"Measured forward and backward of {args.batch} examples, one thread. Put into the configuration:")
    print(f"  pipeline.boundaries=[{','.join(map(str, boundaries))}]")
    return 0
