"""The runtime: one rank of a real pipeline, which executes its stages' columns of the schedule.

Nothing here says which weights are read or when: the schedule orders the actions, the method prescribes the reads, and
`Stage` checks one against the other when it loads them. A rank waits for nothing but the message that its next action
takes, so an asynchronous method is never flushed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pipemare_exp.pipeline.clipping import Clip, check_clip_of_runtime
from pipemare_exp.pipeline.method import Method
from pipemare_exp.pipeline.model.cutting import cut
from pipemare_exp.pipeline.model.dropout import KeyedDropout
from pipemare_exp.pipeline.model.units import Unit, group
from pipemare_exp.pipeline.runtime import messages as kinds
from pipemare_exp.pipeline.runtime.boundary import Sent, leaves, restored
from pipemare_exp.pipeline.runtime.feed import Feed, Wishes
from pipemare_exp.pipeline.runtime.messages import Message
from pipemare_exp.pipeline.runtime.routes import gives_to, takes_from
from pipemare_exp.pipeline.runtime.stage import Loss, Stage
from pipemare_exp.pipeline.runtime.stage_checkpoint import copied
from pipemare_exp.pipeline.runtime.timeline import DeviceClock, Timeline
from pipemare_exp.pipeline.runtime.transport import Transport
from pipemare_exp.pipeline.schedule.actions import Action, Op
from pipemare_exp.pipeline.schedule.columns import Columns
from pipemare_exp.pipeline.weights.optimizer_groups import MakeOptimizer

KIND = {Op.FORWARD: kinds.FORWARD, Op.RECOMPUTE: kinds.RECOMPUTE, Op.BACKWARD: kinds.BACKWARD}


class Runtime:
    """Rank `rank` of the pipeline: `ranks[rank]` are its stages. `model` is the whole model, of which it trains those.

    - `make_method`: makes the method, a new object for every stage;
    - `columns`: what is executed (see columns.py), with P, N, the steps, M and S;
    - `feed(g)`: the microbatch; called where the first or the last stage is;
    - `rate(t)`: alpha_base.
    """

    def __init__(
        self,
        model: nn.Module,
        units: Sequence[Unit],
        boundaries: Sequence[int],
        make_method: Callable[[], Method],
        optimizer: MakeOptimizer,
        columns: Columns,
        ranks: Sequence[range],
        transport: Transport,
        feed: Feed,
        loss: Loss,
        rate: Callable[[int], float],
        *,
        seed: int = 0,
        clip: Clip = None,
        wishes: Wishes | None = None,
    ) -> None:
        check_clip_of_runtime(clip, len(boundaries))
        self.columns, self.transport, self.feed, self.rate = columns, transport, feed, rate
        self.wishes = wishes or Wishes()
        self.microbatches, self.count = columns.microbatches, columns.stages
        self.rank_of = {stage: rank for rank, stages in enumerate(ranks) for stage in stages}
        self.rank = transport.rank
        parts, grouped = cut(model, units, boundaries), group(units, boundaries)
        device = next(model.parameters()).device
        dropout = KeyedDropout(model, seed, device)
        slots = columns.slots
        self.stages = {
            s: Stage(
                model, parts[s], grouped[s], s, self.count, make_method(), optimizer, self.microbatches, slots,
                dropout, loss, segment=columns.segment, clip=clip,
            )
            for s in ranks[self.rank]
        }  # fmt: skip
        on_cuda = device.type == "cuda"
        clock = DeviceClock(lambda: torch.cuda.Event(enable_timing=True)) if on_cuda else None
        self.timeline = Timeline(self.rank, clock)
        self.stop_at: int | None = None
        self.busy: tuple[str, float] | None = None
        """The running action and since when, for a watch; None while waiting."""
        self._empty: set[tuple[int, int]] = set()
        self._planned: set[int] = set()
        self._states: dict[int, dict[int, dict[str, Any]]] = {}
        self._actions: Iterator[tuple[int, Action]] | None = None
        self._after = 0

    def save_last(self) -> None:
        """Gather the state after the last step, when nothing is in flight. Every rank calls this before it begins."""
        for stage in self.stages.values():
            stage.gathering.begin(self.columns.steps)
        self._planned.add(self.columns.steps)

    @property
    def planned(self) -> set[int]:
        """Versions at which checkpoints are made or being gathered."""
        return self._planned

    def advance(self) -> bool:
        """Execute up to and with the next update of this rank's first stage, its slowest; False once all is done."""
        first = min(self.stages)
        if self._actions is None:
            self._actions = self.columns.rank(sorted(self.stages), self._after)
        for stage, action in self._actions:
            if self.stop_at is not None and self.stages[stage].version >= self.stop_at:
                if all(s.version >= self.stop_at for s in self.stages.values()):
                    return False
                continue
            self._execute(self.stages[stage], action)
            if stage == first and action.op is Op.UPDATE:
                return True
        return False

    def _execute(self, stage: Stage, action: Action) -> None:
        where = self.transport.where = f"{action} of stage {stage.index} (step {action.step + 1})"
        self.transport.check()
        if action.op is Op.BACKWARD and (stage.index, action.microbatch) in self._empty:
            self._empty.remove((stage.index, action.microbatch))
            return
        if action.op is Op.RECOMPUTE and (stage.index, action.microbatch) in self._empty:
            return
        message = self._input(stage, action)
        self.busy = (where, time.monotonic())
        began = self.timeline.mark()
        run = {
            Op.FORWARD: self._forward,
            Op.RECOMPUTE: self._recompute,
            Op.BACKWARD: self._backward,
            Op.UPDATE: self._update,
        }[action.op]
        run(stage, action, message)
        ended = self.timeline.mark()
        self.busy = None
        self.timeline.add(str(action), stage.index, action.step, began, ended)

    def _input(self, stage: Stage, action: Action) -> Message | None:
        needs = takes_from(stage.index, action, self.count, self.columns.segment)
        if needs is None:
            return None
        return self.transport.take((KIND[needs[1]], stage.index, needs[2]), self.rank_of[needs[0]])

    def _send(self, stage: Stage, op: Op, g: int, tensors: Any, grads: tuple[bool, ...] = (), notes=(0, 0)) -> None:
        to = gives_to(stage.index, op, self.count, self.columns.segment)
        if to is not None:
            self._dispatch(self.rank_of[to], Message(KIND[op], to, g, tensors, notes, grads))

    def _dispatch(self, rank: int, message: Message) -> None:
        if rank == self.rank:
            self.transport.deliver(message)
        else:
            self.transport.send(rank, message)

    def _forward(self, stage: Stage, action: Action, message: Message | None) -> None:
        g, step = action.microbatch, action.step
        n = g - step * self.microbatches
        microbatch = self.feed(g) if stage.first or stage.last else None
        notes = (0, 0) if message is None else message.notes
        if stage.first and n == 0:
            save, stop = self.wishes.checkpoint(step + 1)
            notes = (step + 1 if save or stop else 0, int(stop))
        if notes[0]:
            stage.gathering.begin(notes[0])
            self._planned.add(notes[0])
            self.stop_at = notes[0] if notes[1] else self.stop_at
        empty = microbatch is None if message is None else message.tensors is None
        snapshot = n == self.microbatches - 1 and self._reported(step + 1)
        if empty:
            self._empty.add((stage.index, g))
            stage.pass_empty(g, snapshot)
            self._send(stage, Op.FORWARD, g, None, notes=notes)
            return
        later = self.columns.segment is not None and step >= (self.columns.start or 0)
        state = None if message is None else leaves(message.tensors or (), message.grads)  # type: ignore[arg-type]
        sent = stage.forward(g, state, microbatch, later, snapshot)
        self._send_state(stage, Op.FORWARD, g, sent, notes)

    def _send_state(self, stage: Stage, op: Op, g: int, sent: Sent, notes: tuple[int, int] = (0, 0)) -> None:
        self._send(stage, op, g, sent[0], sent[1], notes)

    def _recompute(self, stage: Stage, action: Action, message: Message | None) -> None:
        g = action.microbatch
        microbatch = self.feed(g) if stage.first or stage.last else None
        state = None if message is None else leaves(message.tensors or (), message.grads)  # type: ignore[arg-type]
        self._send_state(stage, Op.RECOMPUTE, g, stage.recompute(g, state, microbatch))

    def _backward(self, stage: Stage, action: Action, message: Message | None) -> None:
        g = action.microbatch
        gradients = stage.backward(g, None if message is None else message.tensors or ())
        self._send(stage, Op.BACKWARD, g, gradients)

    def _update(self, stage: Stage, action: Action, _: Message | None) -> None:
        step = action.step
        stage.update(step, self.rate(step))
        version = step + 1
        if stage.index == min(self.stages):
            self.feed.forget(version)
        if stage.last:
            total = stage.losses.pop(step, torch.zeros((), device=stage.flat.weights.device))
            self._dispatch(0, Message(kinds.LOSS, 0, version, (total.cpu(),)))
        if self._reported(version):
            statistics = stage.statistics.pop(version)
            tensors = tuple(tensor.cpu() for tensor in (stage.flat_weights, *statistics))
            self._dispatch(0, Message(kinds.SNAPSHOT, stage.index, version, tensors))
        if version in stage.gathering:
            self._save(stage, version)

    def _reported(self, version: int) -> bool:
        return version in self._planned or self.wishes.observed(version)

    def _save(self, stage: Stage, version: int) -> None:
        states = self._states.setdefault(version, {})
        empty = sorted(g for index, g in self._empty if index == stage.index)
        states[stage.index] = copied({**stage.state_dict(), "empty": empty})
        if len(states) == len(self.stages):
            del self._states[version]
            if self.wishes.save is not None:
                self.wishes.save(version, states)
            self._dispatch(0, Message(kinds.SAVED, self.rank, version))

    def restore(self, version: int, states: dict[int, dict[str, Any]]) -> None:
        """Go on from version `version`, with the states of this rank's stages that a checkpoint has."""
        self._after = version
        for index, stage in self.stages.items():
            under_way = stage.load_state_dict(states[index], self.feed)
            self._empty |= {(index, g) for g in states[index]["empty"]}
            for saved in under_way:
                op = Op.FORWARD if saved["kind"] == "forward" else Op.RECOMPUTE
                self._send_state(stage, op, saved["index"], restored(saved))

    # What rank 0 asks for

    def loss(self, version: int) -> Tensor:
        """The loss of the step that made `version`."""
        return _only(self.transport.take((kinds.LOSS, 0, version), self.rank_of[self.count - 1]))[0]

    def snapshot(self, version: int, stage: int) -> list[Tensor]:
        """[flat weights, buffers...] of a stage at `version`, for which it was wanted."""
        return _only(self.transport.take((kinds.SNAPSHOT, stage, version), self.rank_of[stage]))

    def wait_for_saves(self, version: int) -> None:
        """Until every rank has written its part of the checkpoint."""
        for rank in sorted(set(self.rank_of.values())):
            self.transport.take((kinds.SAVED, rank, version), rank)

    def memory(self) -> dict[str, int]:
        """Bytes on this rank, summed over its stages (see Stage.memory)."""
        parts = [stage.memory() for stage in self.stages.values()]
        return {name: sum(part[name] for part in parts) for name in parts[0]}


def _only(message: Message) -> list[Tensor]:
    return [tensor for tensor in message.tensors or () if tensor is not None]
