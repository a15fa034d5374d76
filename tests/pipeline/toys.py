"""Small networks, their data, and one way to put an emulator around them."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pipemare_exp import methods
from pipemare_exp.pipeline.emulator.emulator import Emulator
from pipemare_exp.pipeline.emulator.ways import Execution
from pipemare_exp.pipeline.model.units import weight_units
from pipemare_exp.pipeline.shape import Pipeline
from pipemare_exp.seeding import key
from tests.pipeline.reference import SGD, Adam, NAdam, Rule

#: name in tests -> (kind, which of T1, T2, T3 are on)
METHODS = {
    "gpipe": ("gpipe", ""),
    "pipedream": ("pipedream", ""),
    "async": ("pipemare", ""),
    "t1": ("pipemare", "1"),
    "t2": ("pipemare", "2"),
    "t1+t2": ("pipemare", "12"),
    "t1+t2+t3": ("pipemare", "123"),
}

Microbatch = tuple[Tensor, Tensor, int]


def mixed_net(
    dtype: torch.dtype = torch.float64, seed: int = 0, sizes: tuple[int, int, int, int] = (4, 3, 8, 3)
) -> nn.Sequential:
    """Convolution, BatchNorm, dropout, linear: 6 weight units; images [b, 2, 6, 6], at least 3 classes."""
    first, second, third, classes = sizes
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(2, first, 3, padding=1),
            nn.BatchNorm2d(first),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Conv2d(first, second, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(second),
            nn.ReLU(),
            nn.Flatten(),
            nn.Dropout(0.3),
            nn.Linear(9 * second, third),
            nn.ReLU(),
            nn.Linear(third, classes),
        ).to(dtype)


def dense_net(seed: int = 0) -> nn.Sequential:
    """Four linear layers with ReLU between: 4 weight units; inputs [b, 5], 3 classes; float64."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Linear(5, 7),
            nn.ReLU(),
            nn.Linear(7, 6),
            nn.ReLU(),
            nn.Linear(6, 6),
            nn.ReLU(),
            nn.Linear(6, 3),
        ).double()


def minibatches(
    shape: Sequence[int],
    microbatches: int,
    steps: int,
    dtype: torch.dtype = torch.float64,
    empty: bool = True,
    seed: int = 1,
) -> Iterator[list[Microbatch | None]]:
    """Minibatches of uneven microbatches; with `empty`, every fifth has one without examples (None)."""
    draw = torch.Generator().manual_seed(seed)
    for step in range(steps):
        sizes = [int(torch.randint(2, 6, (), generator=draw)) for _ in range(microbatches)]
        if empty and microbatches > 1 and step % 5 == 3:
            sizes[step % microbatches] = 0
        count = sum(sizes)
        yield [
            None
            if size == 0
            else (
                torch.randn(size, *shape, generator=draw, dtype=torch.float64).to(dtype),
                torch.randint(0, 3, (size,), generator=draw),
                count,
            )
            for size in sizes
        ]


def loss(model: Callable[[Tensor], Tensor], microbatch: Microbatch) -> Tensor:
    x, labels, count = microbatch
    return F.cross_entropy(model(x), labels, reduction="sum") / count


def keyed_mask(seed: int, step: int, n: int, name: str, call: int, p: float, values: Tensor) -> Tensor:
    """The mask of one dropout call, from its key alone; the global generator is left as it was."""
    with torch.random.fork_rng():
        torch.manual_seed(key(seed, step, n, name, call))
        return F.dropout(torch.ones_like(values), p)


def named_units(net: nn.Module) -> list[list[str]]:
    """The parameters of each weight-bearing module as listed, which is the order of use in a Sequential."""
    return [
        [f"{name}.{label}" if name else label for label, _ in module.named_parameters(recurse=False)]
        for name, module in net.named_modules()
        if any(True for _ in module.parameters(recurse=False))
    ]


def cut(units: Sequence[Sequence[str]], boundaries: Sequence[int]) -> list[list[str]]:
    ends = [*boundaries[1:], len(units)]
    return [[name for unit in units[start:end] for name in unit] for start, end in zip(boundaries, ends, strict=True)]


def rule(
    label: str, stages: int, microbatches: int, slots: str, k: int = 25, decay: float = 0.3, warmup: int = 7
) -> Rule:
    kind, switches = METHODS[label]
    return Rule(
        kind,
        stages,
        microbatches,
        slots,
        k if "1" in switches else 0,
        decay if "2" in switches else None,
        warmup if "3" in switches else 0,
    )


def method(described: Rule):
    """The package's method for a rule."""
    if described.kind == "pipemare":
        return methods.build(
            "pipemare",
            lr_rescheduling_steps=described.rescheduling,
            decay=described.decay,
            warmup_steps=described.warmup,
        )
    return methods.build(described.kind)


def torch_optimizer(described: SGD | Adam) -> Callable[[list[dict]], torch.optim.Optimizer]:
    """torch's optimizer for the reference's description, foreach."""

    def make(groups):
        if isinstance(described, SGD):
            return torch.optim.SGD(
                groups,
                lr=0.0,
                momentum=described.momentum,
                nesterov=described.nesterov,
                weight_decay=described.weight_decay,
                foreach=True,
            )
        if isinstance(described, NAdam):
            return torch.optim.NAdam(
                groups,
                lr=0.0,
                betas=described.betas,
                eps=described.eps,
                weight_decay=described.weight_decay,
                momentum_decay=described.psi,
                decoupled_weight_decay=True,
                foreach=True,
            )
        kind = torch.optim.AdamW if described.decoupled else torch.optim.Adam
        return kind(
            groups,
            lr=0.0,
            betas=described.betas,
            eps=described.eps,
            weight_decay=described.weight_decay,
            foreach=True,
        )

    return make


def look(net: nn.Module, example: object) -> None:
    """One forward that leaves no trace."""
    training = net.training
    net.eval()
    with torch.no_grad():
        net(example)
    net.train(training)


def emulator(
    net: nn.Module, example: object, boundaries: Sequence[int], how, optimizer, microbatches: int, **options
) -> Emulator:
    """An emulator around `net`; `how` is a Rule or a method, `optimizer` a description or a factory, and `options` are
    those of the pipeline, the execution and the emulator."""
    units = weight_units(net, lambda m: look(m, example))
    if isinstance(how, Rule):
        options.setdefault("slots", how.slots)
        how = method(how)
    if isinstance(optimizer, SGD | Adam):
        optimizer = torch_optimizer(optimizer)
    shape = {name: options.pop(name) for name in ("slots", "segment", "split") if name in options}
    names = [field.name for field in dataclasses.fields(Execution)]
    execution = Execution(**{name: options.pop(name) for name in names if name in options})
    pipeline = Pipeline(units, list(boundaries), microbatches, **shape)
    return Emulator(net, pipeline, how, optimizer, execution=execution, **options)


def same(a: object, b: object) -> bool:
    """Whether two nests of dicts, lists, tensors and numbers agree to the last bit."""
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return isinstance(b, list | tuple) and len(a) == len(b) and all(map(same, a, b))
    return a == b
