"""Trainings that both engines run: a model, its minibatches, and the method, out of a plain description."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock

from pipemare_exp import methods, models, optimizers
from pipemare_exp.models.resnet import ResNet, Spec
from pipemare_exp.pipeline.model.recompute import piece_starts
from pipemare_exp.pipeline.model.units import Piece, choose_boundaries, pieces, weight_units
from tests.methods.proofs import PROOFS

METHODS = {
    "gpipe": ("gpipe", {}),
    "pipedream": ("pipedream", {}),
    "async": ("pipemare", {}),
    "t1": ("pipemare", {"lr_rescheduling_steps": 20}),
    "t2": ("pipemare", {"decay": math.exp(-2)}),
    "t1+t2": ("pipemare", {"lr_rescheduling_steps": 20, "decay": 0.5}),
    "t1+t2+t3": ("pipemare", {"lr_rescheduling_steps": 20, "decay": 0.5, "warmup_steps": 7}),
    "pipedream+t3": ("pipedream", {"warmup_steps": 5}),
}


@dataclass(frozen=True)
class Case:
    """`method`: a key of METHODS, or proof:NAME, as the row of tests/methods/proofs.py has it. `ranks` None: one per
    stage. `flush`: the order of a synchronous method's minibatch. `segment`: S."""

    method: str
    stages: int = 2
    microbatches: int = 2
    model: str = "resnet"
    slots: str = "duplex"
    segment: int | None = None
    flush: str = "gpipe"
    ranks: int | None = None
    optimizer: str = "sgd"
    decay: str = "all"
    clip: float | None = None
    seed: int = 0
    """Of the dropout masks."""
    schedule: str = "constant"
    """Of the rate: constant, or falling from step to step."""
    steps: int = 30
    resume: int | None = None
    """Save at this version, and go on from there in new objects."""

    @property
    def name(self) -> str:
        parts = [self.model, self.method.replace(":", "-"), f"P{self.stages}", f"N{self.microbatches}", self.slots]
        parts += [f"S{self.segment}"] if self.segment else []
        parts += [self.flush] if self.flush != "gpipe" else []
        parts += [f"R{self.ranks}"] if self.ranks else []
        parts += [self.optimizer, self.decay] if self.decay != "all" else []
        parts += ["clip"] if self.clip else []
        parts += [f"seed{self.seed}"] if self.seed else []
        parts += [self.schedule] if self.schedule != "constant" else []
        parts += [f"from{self.resume}"] if self.resume else []
        return "-".join(parts)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def make_method(self) -> methods.Method:
        if self.method.startswith("proof:"):
            name = self.method.removeprefix("proof:")
            return methods.build(name, **PROOFS[name].options)
        name, options = METHODS[self.method]
        return methods.build(name, **options)

    def make_optimizer(self) -> Any:
        if self.optimizer == "sgd":
            return optimizers.optimizer("sgd", momentum=0.9, weight_decay=5e-4, decay=self.decay)
        return optimizers.optimizer(self.optimizer, weight_decay=1e-2, betas=(0.9, 0.98), decay=self.decay)

    def rate(self, step: int) -> float:
        rate = 0.02 if self.optimizer == "sgd" else 1e-3
        return rate if self.schedule == "constant" else rate * 0.95**step

    @property
    def clipping(self) -> tuple[str, float] | None:
        return None if self.clip is None else ("stage", self.clip)


class Workload:
    """What a case trains, the same in every process."""

    def __init__(self, case: Case) -> None:
        torch.manual_seed(3)
        self.case = case
        self.source = {"resnet": Images, "dropout": Images, "transformer": Sentences, "gpt": Tokens}[case.model](case)
        self.model = self.source.model
        self.model.train()
        self.units = weight_units(self.model, self.source.probe)
        starts = piece_starts(self.model, self.units, pieces(self.model))
        ends = [*starts[1:], len(self.units)]
        costs = [sum(u.numel for u in self.units[a:b]) for a, b in zip(starts, ends, strict=True)]
        self.boundaries = [starts[k] for k in choose_boundaries(costs, case.stages)]

    def minibatches(self, start: int) -> Iterator[list[Any]]:
        for step in range(start, self.case.steps):
            yield self.source.minibatch(step)

    @property
    def loss(self) -> Any:
        return self.source.loss


class DropoutNet(nn.Module):
    """Linear layers with dropout of inputs, of hidden values, and twice from one module."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(64, 24), nn.Linear(24, 24), nn.Linear(24, 16), nn.Linear(16, 10)])
        self.norm = nn.LayerNorm(24)
        self.drop = nn.Dropout(0.2)
        self.late = nn.Dropout1d(0.3)

    def pieces(self) -> list[Piece]:
        first, second, third, fourth = self.layers

        def begin(state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            return (self.drop(torch.relu(first(self.drop(state[0].flatten(1))))),)

        def middle(state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            return self.norm(second(state[0])), state[0]

        def later(state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            return (self.late(torch.relu(third(state[0] + state[1]))),)

        return [
            Piece("first", (first,), begin),
            Piece("second", (second, self.norm), middle),
            Piece("third", (third,), later),
            Piece("fourth", (fourth,), lambda state: (fourth(state[0]),)),
        ]

    def forward(self, x: Tensor) -> Tensor:
        state: tuple[Tensor, ...] = (x,)
        for piece in self.pieces():
            state = piece.run(state)
        return state[0]


class Images:
    """scikit-learn's digits in microbatches of uneven size; now and then an empty one."""

    def __init__(self, case: Case) -> None:
        from sklearn.datasets import load_digits

        digits = load_digits()
        self.x = torch.from_numpy(digits.images).float()[:, None] / 16.0
        self.y = torch.from_numpy(digits.target).long()
        self.microbatches = case.microbatches
        if case.model == "resnet":
            self.model: nn.Module = ResNet(Spec(BasicBlock, (1, 1), width=4, channels=1))
        else:
            self.model = DropoutNet()

    @torch.no_grad()
    def probe(self, model: nn.Module) -> None:
        model.eval()
        model(self.x[:2])
        model.train()

    def minibatch(self, step: int) -> list[Any]:
        draw = torch.Generator().manual_seed(step)
        sizes = [int(torch.randint(2, 6, (), generator=draw)) for _ in range(self.microbatches)]
        if self.microbatches > 1 and step % 5 in (2, 3):
            sizes[(0, -1)[step % 2]] = 0
        count, made = sum(sizes), []
        for size in sizes:
            chosen = torch.randint(len(self.y), (size,), generator=draw)
            made.append((self.x[chosen], self.y[chosen], count) if size else None)
        return made

    def loss(self, model: nn.Module, microbatch: Any) -> Tensor:
        x, y, count = microbatch
        return F.cross_entropy(model(x), y, reduction="sum") / count


class Sentences:
    """Made-up sentences of varying length for a fairseq Transformer of two layers a side, with dropout."""

    def __init__(self, case: Case) -> None:
        from pipemare_exp.models import fairseq_door as door
        from pipemare_exp.models import transformer

        words = door.Dictionary()
        for k in range(20):
            words.add_symbol(f"w{k}")
        self.pad, self.eos, self.size = words.pad(), words.eos(), len(words)
        self.microbatches = case.microbatches
        self.probe_once = transformer.run_once
        self.model = transformer.build(
            words, words, layers=2, width=16, heads=2, dropout=0.2, attention_dropout=0.1, activation_dropout=0.1
        )

    @torch.no_grad()
    def probe(self, model: nn.Module) -> None:
        model.eval()
        self.probe_once(model)
        model.train()

    def minibatch(self, step: int) -> list[Any]:
        draw = torch.Generator().manual_seed(step)

        def batch(count: int, longest: int, left: bool) -> Tensor:
            rows = torch.full((count, longest), self.pad)
            for row in rows:
                length = int(torch.randint(2, longest + 1, (), generator=draw))
                tokens = torch.randint(self.eos + 2, self.size, (length,), generator=draw)
                tokens[-1] = self.eos
                if left:
                    row[longest - length :] = tokens
                else:
                    row[:length] = tokens
            return rows

        made, total = [], 0
        for _ in range(self.microbatches):
            count = int(torch.randint(1, 4, (), generator=draw))
            source = batch(count, int(torch.randint(3, 7, (), generator=draw)), True)
            target = batch(count, int(torch.randint(3, 7, (), generator=draw)), False)
            before = torch.cat([torch.full((count, 1), self.eos), target[:, :-1]], 1)
            total += int((target != self.pad).sum())
            made.append((source, source.ne(self.pad).sum(1), before, target))
        return [(*part, total) for part in made]

    def loss(self, model: nn.Module, microbatch: Any) -> Tensor:
        source, lengths, before, target, total = microbatch
        logits = model(source, lengths, before)
        return F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=self.pad, reduction="sum") / total


class Tokens:
    """Made-up sequences of tokens for a GPT of two layers, with dropout."""

    def __init__(self, case: Case) -> None:
        self.microbatches = case.microbatches
        self.model = models.build(
            "gpt_tiny", vocabulary=20, positions=6, layers=2, width=16, heads=2, dropout=0.2, attention_dropout=0.1
        )  # fmt: skip

    @torch.no_grad()
    def probe(self, model: nn.Module) -> None:
        model.eval()
        model(torch.zeros(1, 1, dtype=torch.int64))
        model.train()

    def minibatch(self, step: int) -> list[Any]:
        draw = torch.Generator().manual_seed(step)
        sizes = [int(torch.randint(1, 4, (), generator=draw)) for _ in range(self.microbatches)]
        return [(torch.randint(20, (size, 7), generator=draw), 6 * sum(sizes)) for size in sizes]

    def loss(self, model: nn.Module, microbatch: Any) -> Tensor:
        tokens, count = microbatch
        logits = model(tokens[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="sum") / count
