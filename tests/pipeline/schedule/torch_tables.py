"""torch.distributed.pipelining's own tables, made without processes: an oracle for orders.

A schedule's constructor needs stages of a running process group, the method that writes a rank's table only numbers. So
the object is made without its constructor. Written for torch 2.14; `pytest` says so if a private name is gone.
"""

from __future__ import annotations

from typing import Any

from torch.distributed.pipelining import schedules as torchs

from pipemare_exp.pipeline.schedule.actions import Op, Schedule

OPS = {
    torchs._ComputationType.FORWARD: Op.FORWARD,
    torchs._ComputationType.FULL_BACKWARD: Op.BACKWARD,
    torchs._ComputationType.BACKWARD_INPUT: Op.INPUT_GRADIENT,
    torchs._ComputationType.BACKWARD_WEIGHT: Op.WEIGHT_GRADIENT,
}


def table(kind: type, devices: int, microbatches: int, local: int = 1) -> list[list[tuple[Op, int, int]]]:
    """Per rank, (operation, stage, microbatch) in torch's order, bubbles left out; `local` stages on a rank."""
    made: Any = object.__new__(kind)
    made.pp_group_size, made.n_local_stages, made._n_microbatches = devices, local, microbatches
    made.num_stages = made._num_stages = devices * local
    made.number_of_rounds = max(1, microbatches // devices)
    made.microbatches_per_round = microbatches // made.number_of_rounds
    return [_read(made._calculate_single_rank_operations(rank)) for rank in range(devices)]


def single_stage_table(kind: type, devices: int, microbatches: int) -> list[list[tuple[Op, int, int]]]:
    """The same of a schedule of one stage a rank, whose table another method writes, for all ranks together."""
    made: Any = object.__new__(kind)
    made._num_stages, made._n_microbatches = devices, microbatches
    by_rank = made._get_pipeline_order()
    return [_read(by_rank[rank]) for rank in range(devices)]


def _read(actions: list[Any]) -> list[tuple[Op, int, int]]:
    return [one for action in actions if action is not None for one in _operations(action)]


def _operations(action: Any) -> list[tuple[Op, int, int]]:
    """An overlapped forward and backward is two operations."""
    parts = action.sub_actions or [action]
    return [(OPS[a.computation_type], a.stage_index, a.microbatch_index) for a in parts if a.computation_type in OPS]


def ours(schedule: Schedule) -> list[list[tuple[Op, int, int]]]:
    """The same of a schedule of ours: what each device runs, in order, without updates."""
    return [
        [(action.op, stage, action.microbatch) for stage, action in column if action.op is not Op.UPDATE]
        for column in schedule.device_columns()
    ]
