"""`pipemare plan`: what P stages and N microbatches mean for every method, before anything is trained."""

from __future__ import annotations

import argparse
import json
import textwrap
from typing import Any

from pipemare_exp import methods, models
from pipemare_exp.arguments import whole
from pipemare_exp.commands import plan_ranks
from pipemare_exp.errors import UserError
from pipemare_exp.pipeline.method import RECOMPUTATION
from pipemare_exp.pipeline.schedule import costs, versions
from pipemare_exp.pipeline.schedule import orders as schedule
from pipemare_exp.pipeline.schedule.actions import SLOT_KINDS
from pipemare_exp.settings import MOST_PARTS

HELP = "delays, versions, utilization, memory and the schedule grid of every method"

EPILOG = """\
examples:
  pipemare plan --stages 4 --microbatches 2 --steps 3      the schedule of every method as a grid
  pipemare plan --model resnet50 --microbatches 32         one stage per weight unit: 107
  pipemare plan --model resnet50 --stages 16 --microbatches 8 --optimizer adamw --json
  pipemare plan --model digits_resnet --stages 4 --microbatches 8 --measure    boundaries for engine=runtime
  pipemare plan --model resnet50 --stages 16 --ranks 16 --per-node 8     what each rank of engine=runtime holds

Memory is in multiples of W, the size of the weights; activations in microbatches at one
stage, summed over the stages. All numbers are the model's, none is measured.
"""

GRID_STAGES = 8
GRID_SLOTS = 40
MOST_ACTIONS = 1_000_000
"""P x N x T: what --steps lays out, action by action."""
TABLE_WIDTH = 100
DELAY_ROWS = 24
"""Above this number of stages the table of delays leaves out those in the middle."""


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
    plan = make_plan(stages, args.microbatches, optimizer, args.slots, args.steps, sizes)
    if args.json:
        print(json.dumps(plan))
    else:
        _show(plan, args.model, sizes, args.steps)
    return 0


def _usual_optimizer(model: str | None) -> str:
    return "adamw" if model is not None and models.images(model) is None else "sgd_momentum"


def make_plan(
    stages: int,
    microbatches: int,
    optimizer: str = "sgd_momentum",
    slots: str = "duplex",
    steps: int | None = None,
    sizes: list[int] | None = None,
) -> dict[str, Any]:
    """The plan as `--json` prints it.

    `memory.stash_model` is there only with `sizes` (weights per stage), `versions` (of PipeMare, as
    [stage][step][microbatch]) only with `steps`. `activations.sqrt` is null where no recomputation is
    defined: for a flushed method, in alternating slots, and where the method refuses it. `refused` says why the
    method cannot be had with this shape, and is null where it can.
    """
    plan: dict[str, Any] = {
        "stages": stages,
        "microbatches": microbatches,
        "slots": slots,
        "tau_fwd": versions.mean_delays(stages, microbatches, slots),
        "gpipe_ratio": costs.gpipe_ratio(stages, microbatches),
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
    _show_table(
        ["stage", "first piece", "ms a microbatch"],
        [[str(s), cut[k].name, f"{milliseconds[s]:.2f}"] for s, k in enumerate(first)],
    )
    print(f"Measured forward and backward of {args.batch} examples, one thread. Put into the configuration:")
    print(f"  pipeline.boundaries=[{','.join(map(str, boundaries))}]")
    return 0


def _show(plan: dict[str, Any], model: str | None, sizes: list[int] | None, steps: int | None) -> None:
    """The plan for people: methods, delays and, with `steps`, versions and grids."""
    stages, microbatches, slots = plan["stages"], plan["microbatches"], plan["slots"]
    source = f" of {model} ({sum(sizes):,} weights)" if sizes else ""
    print(f"P = {stages} stages{source}, N = {microbatches} microbatches, {slots} slots.")
    print(f"A GPipe step takes (N+P-1)/N = {plan['gpipe_ratio']:.6g} times as long as an asynchronous step.")
    _show_methods(plan)
    _show_delays(plan, sizes)
    if steps is not None:
        _show_schedules(stages, microbatches, steps, slots)


def _show_methods(plan: dict[str, Any]) -> None:
    segment = costs.sqrt_segment(plan["stages"])
    columns = {
        "util.": lambda method: method["utilization"],
        "weights": lambda method: method["memory"]["weights"],
        "stash": lambda method: method["memory"]["stash_uniform"],
        "model's": lambda method: method["memory"].get("stash_model"),
        "buffers": lambda method: method["memory"]["buffers"],
        "activ.": lambda method: method["activations"]["none"],
        f"S = {segment}": lambda method: method["activations"]["sqrt"],
    }
    possible = {name: method for name, method in plan["methods"].items() if method["refused"] is None}
    cells = {head: [_number(value(method)) for method in possible.values()] for head, value in columns.items()}
    shown = {head: values for head, values in cells.items() if set(values) != {"-"}}
    _show_table(["", *shown], [list(row) for row in zip(possible, *shown.values(), strict=True)])
    same = next(iter(plan["methods"].values()))["memory"]
    beside = f"gradients, {_number(same['gradients'])} W, and optimizer, {_number(same['optimizer'])} W"
    print("util.: utilization. In W, the weights' size: weights, stash (with stages of equal size; the model's),")
    print(f"buffers (such as T2's); beside them {beside}.")
    print(f"activ.: activations held, in microbatches at one stage; S = {segment}: in segments of {segment}.")
    for name, method in plan["methods"].items():
        if method["refused"] is not None:
            print(textwrap.fill(f"Not {name}: {method['refused']}.", 100))
    print()


def _number(value: float | None) -> str:
    """Four digits, integers whole, `-` for what is not defined."""
    if value is None:
        return "-"
    return str(int(value)) if value == int(value) else f"{value:.4g}"


def _show_delays(plan: dict[str, Any], sizes: list[int] | None) -> None:
    stages, microbatches = plan["stages"], plan["microbatches"]
    delays = versions.slot_delays(stages, plan["slots"])
    rows = []
    for s, tau in enumerate(plan["tau_fwd"]):
        kept = versions.history_depth(delays[s], microbatches) + 1
        rows.append([str(s), _number(tau), str(kept), *([] if sizes is None else [f"{sizes[s]:,}"])])
    if stages > DELAY_ROWS:
        ends = DELAY_ROWS // 3
        rows = [*rows[:ends], ["..."] * len(rows[0]), *rows[-ends:]]
    _show_table(["stage", "delay (steps)", "versions", *([] if sizes is None else ["weights"])], rows)
    print("Versions: the most that PipeDream keeps at one moment, the current one included.\n")


def _show_table(header: list[str], rows: list[list[str]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    for k, heading in enumerate(header):
        table.add_column(heading, justify="right" if k or heading else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    Console(highlight=False, width=TABLE_WIDTH).print(table)


def _show_schedules(stages: int, microbatches: int, steps: int, slots: str) -> None:
    """Grid of every schedule, with the paper's methods that have it, and the versions that they read; by `print`, which
    never wraps. Later methods run under the same schedules and may read other versions."""
    drawn: dict[tuple[bool, bool], list[str]] = {}
    for kind in methods.METHODS.values():
        for declared in list(kind.costs.values())[:1] if kind.study is None else ():
            drawn.setdefault((declared.flushed, declared.stash > 0), []).append(kind.title)
    for (flushed, stashes), titles in drawn.items():
        if flushed:
            plan = schedule.gpipe(stages, microbatches, steps)
        else:
            plan = (schedule.pipedream if stashes else schedule.pipemare)(stages, microbatches, steps, slots)
        print(f"{', '.join(titles)} ({plan.slots} slots): utilization {plan.utilization():.4g} with fill and drain")
        if stages > GRID_STAGES or plan.length > GRID_SLOTS:
            print(f"  {stages} stages x {plan.length} slots; grids go up to {GRID_STAGES} x {GRID_SLOTS}\n")
            continue
        print(plan.render())
        print("* updates at the slot's end. Versions read by forward/backward, step by step:")
        walked = versions.walk(plan)
        for s in range(stages):
            by_step = zip(walked.forward[s], walked.backward[s], strict=True)
            texts = [" ".join(f"{f}/{b}" for f, b in zip(*pair, strict=True)) for pair in by_step]
            print(f"stage {s} {' | '.join(texts)}")
        print()
