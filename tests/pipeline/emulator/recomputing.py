"""The slow reference with activation recomputation, and networks that can be cut into pieces.

As in `reference.py`, whole copies of every version are kept, and of T2's delta at every version. A microbatch is
given three dictionaries of weights: for its forward, of which only the segments' inputs are kept; for the
recomputation, which starts every segment from its kept input; and for the products of the backward, taken at the
recomputed activations. Nothing here shares code with the package.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from pipemare_exp.pipeline.model.units import Piece
from tests.pipeline.reference import Rule, Trainer, Weights
from tests.pipeline.toys import keyed_mask
from tests.pipeline.two_weights import Net

State = tuple[Tensor, ...]


def slots_before_backward(stages: int, segment: int, stage: int) -> int:
    """2(S - j) + 1 slots from recomputation to backward; j = S is the segment's stage nearest the loss.

    Segments are cut from the front, so the one at the loss is the shorter; its last stage counts as j = S.
    """
    nearest = min((stage // segment + 1) * segment, stages) - 1
    return 2 * (nearest - stage) + 1


def recompute_version(rule: Rule, segment: int, step: int, n: int, stage: int) -> int:
    """What is current when the stage recomputes; PipeDream's stash gives what the forward read."""
    if rule.kind == "gpipe" or step < rule.warmup:
        return step
    if rule.kind == "pipedream":
        return rule.forward_version(step, n, stage)
    g = step * rule.microbatches + n
    return max(rule.warmup, (g - slots_before_backward(rule.stages, segment, stage)) // rule.microbatches)


class RecomputingTrainer(Trainer):
    """`gradient(forward, recompute, backward, microbatch, step, n)` takes a third dictionary of weights."""

    def __init__(self, weights, stages, rule, optimizer, gradient, segment: int):
        super().__init__(weights, stages, rule, optimizer, gradient)
        self.segment = segment
        self.deltas = [dict(self.delta)]  # by version

    def _forward(self, t: int, n: int) -> Weights:
        # The caller passes (forward, backward) on to `gradient`: hand over both first sets as one.
        return {"forward": super()._forward(t, n), "recompute": self._recompute(t, n)}

    def _recompute(self, t: int, n: int) -> Weights:
        picked: Weights = {}
        for s, names in enumerate(self.stages):
            r = recompute_version(self.rule, self.segment, t, n, s)
            before = slots_before_backward(self.rule.stages, self.segment, s)
            gap = self.rule.delay(s) - before / self.rule.microbatches if self.rule.corrects(t) else 0.0
            picked.update({name: self.versions[r][name] - gap * self.deltas[r][name] for name in names})
        return picked

    def _update(self, t: int, total: Weights, rate: float) -> None:
        super()._update(t, total, rate)
        self.deltas.append(dict(self.delta))


def dense_gradient_recomputed(starts: Sequence[int]):
    """By hand, no autograd: linear layers "0", "2", "4", ... with ReLU between; `starts` are the positions (0, 1, ...)
    of the layers at which segments begin. Microbatch and loss as in `reference.dense_gradient`."""

    def gradient(first, backward, microbatch, step, n):
        forward, recompute = first["forward"], first["recompute"]
        x, labels, count = microbatch
        layers = sorted({int(name.split(".")[0]) for name in forward})

        def layer(weights, k, values):
            values = values @ weights[f"{layers[k]}.weight"].T + weights[f"{layers[k]}.bias"]
            return values if k == len(layers) - 1 else values.clamp(min=0)

        def probabilities(values):
            exponentials = torch.exp(values - values.max(dim=1, keepdim=True).values)
            return exponentials / exponentials.sum(dim=1, keepdim=True)

        rows = torch.arange(len(labels))
        values, kept = x, {}
        for k in range(len(layers)):
            if k in starts:
                kept[k] = values
            values = layer(forward, k, values)
        loss = -torch.log(probabilities(values)[rows, labels]).sum() / count

        inputs, outputs, values = [], [], x
        for k in range(len(layers)):
            inputs.append(kept.get(k, values))
            values = layer(recompute, k, inputs[k])
            outputs.append(values)
        signal = probabilities(values).clone()
        signal[rows, labels] -= 1
        signal /= count
        grads: Weights = {}
        for k in reversed(range(len(layers))):
            if k < len(layers) - 1:
                signal = signal * (outputs[k] > 0)  # of the recomputed activation, also at a segment's end
            grads[f"{layers[k]}.weight"] = signal.T @ inputs[k]
            grads[f"{layers[k]}.bias"] = signal.sum(dim=0)
            signal = signal @ backward[f"{layers[k]}.weight"]
        return loss, grads

    return gradient


class _Graft(torch.autograd.Function):
    """The kept value, whose gradient goes on to the recomputed one."""

    @staticmethod
    def forward(ctx, computed, kept):
        return kept.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad, None


def segmented_gradient(walker: Net, parts: Sequence[Sequence[Callable[[State], State]]], loss, seed: int):
    """The gradient through two-weight layers; `parts[k]` are the steps of segment k, made of `walker`'s layers.

    One graph over all segments: between two, the value is the kept one and the gradient that of the recomputed one.
    """

    def gradient(first, backward, microbatch, step, n):
        walker.mask = lambda name, call, p, values: keyed_mask(seed, step, n, name, call, p, values)
        kept: list[State] = []

        def once(*state: Tensor) -> Tensor:
            for part in parts:
                kept.append(state)
                for run in part:
                    state = run(state)
            return state[0]

        def again(*state: Tensor) -> Tensor:
            for k, part in enumerate(parts):
                if k > 0:
                    pairs = zip(state, kept[k], strict=True)
                    state = tuple(_Graft.apply(c, o) if o.is_floating_point() else o for c, o in pairs)
                for run in part:
                    state = run(state)
            return state[0]

        walker.forward, walker.backward, walker.calls = first["forward"], first["forward"], {}
        with torch.no_grad():
            value = loss(once, microbatch)
        statistics = dict(walker.statistics)  # the recomputation leaves them as they are now
        leaves = {name: w.clone().requires_grad_() for name, w in first["recompute"].items()}
        walker.forward, walker.backward, walker.calls = leaves, backward, {}
        loss(again, microbatch).backward()
        walker.statistics = statistics
        return value, {name: w.grad for name, w in leaves.items()}

    return gradient


class Pieced(nn.Sequential):
    """A Sequential whose pieces hold `per_piece` weight-bearing modules each, with what follows them."""

    per_piece = 1

    def runs(self) -> list[list[str]]:
        """The children's names of each piece."""
        groups: list[list[str]] = []
        for name, child in self.named_children():
            if any(True for _ in child.parameters()) or not groups:
                groups.append([])
            groups[-1].append(name)
        joined = [groups[k : k + self.per_piece] for k in range(0, len(groups), self.per_piece)]
        return [[name for names in some for name in names] for some in joined]

    def pieces(self) -> list[Piece]:
        made = []
        for names in self.runs():
            modules = tuple(self.get_submodule(name) for name in names)
            made.append(Piece(names[0], modules, lambda state, m=modules: (_through(m, state[0]),)))
        return made


def _through(modules: Sequence[nn.Module], x: Tensor) -> Tensor:
    for module in modules:
        x = module(x)
    return x


class Travelling(nn.Module):
    """A shortcut that passes several pieces before it is added, with an integer and a boolean tensor beside it, and
    one dropout that is called in two pieces; 6 units and 6 pieces. Inputs: x [b, 5] and index [b], below 9.

    `through(call)` gives the steps of each piece, `call(name, x)` running the layer of that name: once for the module
    itself, once for the reference.
    """

    names = ("one", "two", "norm", "three", "table", "last")

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(4)
            self.one, self.two, self.norm = nn.Linear(5, 6), nn.Linear(6, 6, bias=False), nn.LayerNorm(6)
            self.three, self.table, self.last = nn.Linear(6, 6), nn.Embedding(9, 6), nn.Linear(6, 3)
        self.drop = nn.Dropout(0.25)
        self.double()

    @staticmethod
    def through(call: Callable[[str, Tensor], Tensor]) -> list[Callable[[State], State]]:
        def one(state):
            x, index = state
            h = call("one", x).clamp(min=0)
            return h, h, index, x[:, 0] > -0.5  # the shortcut is the very tensor that goes on

        def two(state):
            h, short, index, chosen = state
            return call("drop", call("two", h)), short, index, chosen

        def norm(state):
            h, short, index, chosen = state
            return call("norm", h), short, index, chosen

        def three(state):
            h, short, index, chosen = state
            new = call("drop", call("three", h)).clamp(min=-1.0)
            return torch.where(chosen[:, None], new, h), short, index, chosen

        def table(state):
            h, short, index, _ = state
            return h + short + call("table", index), index

        def last(state):
            h, _ = state
            return (call("last", h),)

        return [one, two, norm, three, table, last]

    def pieces(self) -> list[Piece]:
        steps = self.through(lambda name, x: self.get_submodule(name)(x))
        return [Piece(name, (self.get_submodule(name),), step) for name, step in zip(self.names, steps, strict=True)]

    def forward(self, x: Tensor, index: Tensor) -> Tensor:
        state: State = (x, index)
        for piece in self.pieces():
            state = piece.run(state)
        return state[0]
