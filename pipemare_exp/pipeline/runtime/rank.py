"""The runtime: one rank of a real pipeline, which executes its stages' columns of the schedule.

Nothing here says which weights are read or when: the schedule orders the actions, the method prescribes the reads, and
`Stage` checks one against the other when it loads them. A rank waits for nothing but the message that its next action
takes, so an asynchronous method is never flushed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from pipemare_exp.pipeline.clipping import check_clip_of_runtime
from pipemare_exp.pipeline.model.cutting import cut
from pipemare_exp.pipeline.model.dropout import KeyedDropout
from pipemare_exp.pipeline.runtime.boundary import Sent, leaves, restored
from pipemare_exp.pipeline.runtime.feed import Feed
from pipemare_exp.pipeline.runtime.messages import Kind, Message
from pipemare_exp.pipeline.runtime.routes import gives_to, takes_from
from pipemare_exp.pipeline.runtime.stage import Stage
from pipemare_exp.pipeline.runtime.stage_checkpoint import copied, restore, state_of
from pipemare_exp.pipeline.runtime.timeline import DeviceClock, Timeline
from pipemare_exp.pipeline.runtime.training import Hooks, Training
from pipemare_exp.pipeline.runtime.transport import Transport
from pipemare_exp.pipeline.schedule.actions import Action, Op
from pipemare_exp.pipeline.schedule.columns import Columns
from pipemare_exp.pipeline.shape import Pipeline

KIND = {Op.FORWARD: Kind.FORWARD, Op.RECOMPUTE: Kind.RECOMPUTE, Op.BACKWARD: Kind.BACKWARD}


class Runtime:
    """Rank `transport.rank` of `pipeline`, a cut of the whole `model`; it trains the stages that `transport` gives it.

    `columns` is what is executed (see columns.py). `feed(g)` gives microbatch g, and is asked where the first or the
    last stage is.
    """

    def __init__(
        self,
        model: nn.Module,
        pipeline: Pipeline,
        training: Training,
        columns: Columns,
        transport: Transport,
        feed: Feed,
        hooks: Hooks | None = None,
    ) -> None:
        if training.clip is not None:
            check_clip_of_runtime(training.clip[0], pipeline.stages)
        self.columns, self.transport, self.feed, self.rate = columns, transport, feed, training.rate
        self.hooks = hooks or Hooks()
        self.microbatches, self.count = columns.microbatches, columns.stages
        self.rank_of = {stage: rank for rank, stages in enumerate(transport.stages_of) for stage in stages}
        self.rank = transport.rank
        parts = cut(model, pipeline.units, pipeline.boundaries)
        device = next(model.parameters()).device
        dropout = KeyedDropout(model, training.seed, device)
        self.stages = {
            s: Stage(model, pipeline, s, parts[s], training, dropout) for s in transport.stages_of[self.rank]
        }
        on_cuda = device.type == "cuda"
        clock = DeviceClock(lambda: torch.cuda.Event(enable_timing=True)) if on_cuda else None
        self.timeline = Timeline(self.rank, clock)
        self.stop_at: int | None = None
        self.busy: tuple[str, float] | None = None
        """The running action and since when, for a watch; None while waiting."""
        self.planned: set[int] = set()
        """Versions at which checkpoints are made or being gathered."""
        self._empty: set[tuple[int, int]] = set()
        self._states: dict[int, dict[int, dict[str, Any]]] = {}
        self._actions: Iterator[tuple[int, Action]] | None = None
        self._after = 0

    def save_last(self) -> None:
        """Gather the state after the last step, when nothing is in flight. Every rank calls this before it begins."""
        for stage in self.stages.values():
            stage.gathering.begin(self.columns.steps)
        self.planned.add(self.columns.steps)

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
            save, stop = self.hooks.checkpoint(step + 1)
            notes = (step + 1 if save or stop else 0, int(stop))
        if notes[0]:
            stage.gathering.begin(notes[0])
            self.planned.add(notes[0])
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
        version = step + 1
        measured = self.hooks.measured(version)
        stage.update(step, self.rate(step), measured)
        if measured:
            health = stage.health(step, counted=self.hooks.observed(version))
            self._dispatch(0, Message(Kind.HEALTH, stage.index, version, (health,)))
        if stage.index == min(self.stages):
            self.feed.forget(version)
        if stage.last:
            total = stage.losses.pop(step, torch.zeros((), device=stage.flat.weights.device))
            self._dispatch(0, Message(Kind.LOSS, 0, version, (total.cpu(),)))
        if self._reported(version):
            statistics = stage.statistics.pop(version)
            tensors = tuple(tensor.cpu() for tensor in (stage.flat_weights, *statistics))
            self._dispatch(0, Message(Kind.SNAPSHOT, stage.index, version, tensors))
        if version in stage.gathering:
            self._save(stage, version)

    def _reported(self, version: int) -> bool:
        return version in self.planned or self.hooks.observed(version)

    def _save(self, stage: Stage, version: int) -> None:
        states = self._states.setdefault(version, {})
        empty = sorted(g for index, g in self._empty if index == stage.index)
        states[stage.index] = copied({**state_of(stage), "empty": empty})
        if len(states) == len(self.stages):
            del self._states[version]
            if self.hooks.save is not None:
                self.hooks.save(version, states)
            self._dispatch(0, Message(Kind.SAVED, self.rank, version))

    def restore(self, version: int, states: dict[int, dict[str, Any]]) -> None:
        """Go on from version `version`, with the states of this rank's stages that a checkpoint has."""
        self._after = version
        for index, stage in self.stages.items():
            under_way = restore(stage, states[index], self.feed)
            self._empty |= {(index, g) for g in states[index]["empty"]}
            for saved in under_way:
                op = Op.FORWARD if saved["kind"] == "forward" else Op.RECOMPUTE
                self._send_state(stage, op, saved["index"], restored(saved))

    # What rank 0 asks for

    def loss(self, version: int) -> Tensor:
        """The loss of the step that made `version`."""
        return _only(self.transport.take((Kind.LOSS, 0, version), self.rank_of[self.count - 1]))[0]

    def health(self, version: int) -> list[list[float]]:
        """What `Stage.health` says of every stage, at a version for which it was to be measured."""
        stages = range(self.count)
        messages = [self.transport.take((Kind.HEALTH, stage, version), self.rank_of[stage]) for stage in stages]
        return [_only(message)[0].tolist() for message in messages]

    def snapshot(self, version: int, stage: int) -> list[Tensor]:
        """[flat weights, buffers...] of a stage at `version`, for which it was wanted."""
        return _only(self.transport.take((Kind.SNAPSHOT, stage, version), self.rank_of[stage]))

    def wait_for_saves(self, version: int) -> None:
        """Until every rank has written its part of the checkpoint."""
        for rank in sorted(set(self.rank_of.values())):
            self.transport.take((Kind.SAVED, rank, version), rank)

    def failure(self, error: BaseException) -> str:
        """One line: which rank and stages failed, at what action and step, and why."""
        text = (str(error).strip().splitlines() or [""])[0]
        return f"{self.transport.name(self.rank)} failed at {self.transport.where}: {type(error).__name__}: {text}"

    def memory(self) -> dict[str, int]:
        """Bytes on this rank, summed over its stages (see Stage.memory)."""
        parts = [stage.memory() for stage in self.stages.values()]
        return {name: sum(part[name] for part in parts) for name in parts[0]}


def _only(message: Message) -> list[Tensor]:
    return [tensor for tensor in message.tensors or () if tensor is not None]
