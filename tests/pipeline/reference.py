"""A slow trainer that keeps whole copies of every version, to check the emulator against.

Written from the definitions alone: every version of every weight is a separate deep copy in a list, a
microbatch's forward is given one dictionary of weights and its backward another, and the optimizers are the
textbook formulas. Nothing here shares code with the package, so that a mistake in one shows in the other.

How the gradient of one microbatch is taken from the two dictionaries is given by the caller: by hand
(`dense_gradient`, below) or by functions that take two weights (`two_weights.py`).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Weights = dict[str, Tensor]
#: (forward weights, backward weights, microbatch, step, n) -> (loss, gradient by parameter name)
Gradient = Callable[[Weights, Weights, object, int, int], tuple[Tensor, Weights]]


@dataclass(frozen=True)
class Rule:
    """Which version each stage reads, and at which rate it learns; stage s is 0-based.

    kind: "gpipe", "pipedream" or "pipemare"; T1 with `rescheduling` steps K (0: off), T2 with `decay` D
    (None: off), T3 with `warmup` steps M.
    """

    kind: str
    stages: int
    microbatches: int
    slots: str = "duplex"
    rescheduling: int = 0
    decay: float | None = None
    warmup: int = 0

    def between(self, stage: int) -> int:
        """L: slots (duplex) or backwards (alternating) between a microbatch's forward and backward."""
        i = stage + 1
        return 2 * (self.stages - i) + 1 if self.slots == "duplex" else self.stages - i

    def delay(self, stage: int) -> float:
        return self.between(stage) / self.microbatches

    def forward_version(self, step: int, n: int, stage: int) -> int:
        if self.kind == "gpipe" or step < self.warmup:
            return step
        g = step * self.microbatches + n
        return max(self.warmup, (g - self.between(stage)) // self.microbatches)

    def backward_version(self, step: int, n: int, stage: int) -> int:
        return self.forward_version(step, n, stage) if self.kind == "pipedream" else step

    def corrects(self, step: int) -> bool:
        return self.kind == "pipemare" and self.decay is not None and step >= self.warmup

    def decay_per_step(self, stage: int) -> float:
        d = self.delay(stage)
        return 0.0 if self.decay is None or d == 0 else math.exp(math.log(self.decay) / d)

    def rate_factor(self, step: int, stage: int) -> float:
        if self.rescheduling == 0 or step < self.warmup:
            return 1.0
        p = 1 - min((step - self.warmup) / self.rescheduling, 1)
        return 1 / max(self.delay(stage), 1.0) ** p


@dataclass(frozen=True)
class SGD:
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0

    def update(self, w: Tensor, grad: Tensor, rate: float, state: dict, k: int) -> Tensor:
        grad = grad + self.weight_decay * w
        velocity = self.momentum * state.get("velocity", torch.zeros_like(w)) + grad
        state["velocity"] = velocity
        return w - rate * (grad + self.momentum * velocity if self.nesterov else velocity)


@dataclass(frozen=True)
class Adam:
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    decoupled: bool = False

    def update(self, w: Tensor, grad: Tensor, rate: float, state: dict, k: int) -> Tensor:
        if not self.decoupled:
            grad = grad + self.weight_decay * w
        first, second = self.betas
        m = first * state.get("m", torch.zeros_like(w)) + (1 - first) * grad
        v = second * state.get("v", torch.zeros_like(w)) + (1 - second) * grad * grad
        state["m"], state["v"] = m, v
        direction = (m / (1 - first**k)) / ((v / (1 - second**k)).sqrt() + self.eps)
        shrink = rate * self.weight_decay if self.decoupled else 0.0
        return w - shrink * w - rate * direction


@dataclass(frozen=True)
class NAdam(Adam):
    """Dozat's, as torch has it: momentum decay psi, weight decay decoupled."""

    psi: float = 0.004

    def update(self, w: Tensor, grad: Tensor, rate: float, state: dict, k: int) -> Tensor:
        first, second = self.betas
        m = first * state.get("m", torch.zeros_like(w)) + (1 - first) * grad
        v = second * state.get("v", torch.zeros_like(w)) + (1 - second) * grad * grad
        now, coming = (first * (1 - 0.5 * 0.96 ** (j * self.psi)) for j in (k, k + 1))
        product = state.get("product", 1.0) * now
        state["m"], state["v"], state["product"] = m, v, product
        scale = (v / (1 - second**k)).sqrt() + self.eps
        ahead = (1 - now) / (1 - product) * grad + coming / (1 - product * coming) * m
        return w - rate * self.weight_decay * w - rate * ahead / scale


class Trainer:
    """Runs minibatches under a `Rule`, with every version kept for ever.

    `stages[s]` names the parameters of stage s. `clip` is None, ("stage", norm) or ("global", norm).
    """

    def __init__(
        self,
        weights: Mapping[str, Tensor],
        stages: Sequence[Sequence[str]],
        rule: Rule,
        optimizer: SGD | Adam,
        gradient: Gradient,
        clip: tuple[str, float] | None = None,
    ):
        assert len(stages) == rule.stages
        self.stages, self.rule, self.optimizer, self.gradient, self.clip = (
            stages,
            rule,
            optimizer,
            gradient,
            clip,
        )
        self.versions: list[Weights] = [{name: w.detach().clone() for name, w in weights.items()}]
        self.delta: Weights = {name: torch.zeros_like(w) for name, w in self.versions[0].items()}
        self.moments: dict[str, dict] = {name: {} for name in self.versions[0]}
        self.states: list[dict[str, dict]] = [{name: {} for name in weights}]
        """The optimizer's state of each parameter, by version."""
        self.rates: list[list[float]] = []
        """The rate of each stage, by step."""
        self.read: list[tuple[int, int, int, int]] = []  # (step, n, stage, version read by forward)

    def weights(self) -> Weights:
        return self.versions[-1]

    def step(self, microbatches: Sequence[object], rate: float) -> float:
        t = len(self.versions) - 1
        total: Weights = {name: torch.zeros_like(w) for name, w in self.versions[t].items()}
        loss = 0.0
        for n, microbatch in enumerate(microbatches):
            if microbatch is None:
                continue
            part, grads = self._gradient(t, n, microbatch)
            loss += float(part)
            for name, grad in grads.items():
                total[name] = total[name] + grad
        self._clip(total)
        self._update(t, total, rate)
        return loss

    def _gradient(self, t: int, n: int, microbatch: object) -> tuple[Tensor, Weights]:
        return self.gradient(self._forward(t, n), self._backward(t, n), microbatch, t, n)

    def _forward(self, t: int, n: int) -> Weights:
        picked: Weights = {}
        for s, names in enumerate(self.stages):
            version = self.rule.forward_version(t, n, s)
            self.read.append((t, n, s, version))
            picked.update({name: self.versions[version][name].clone() for name in names})
        return picked

    def _backward(self, t: int, n: int) -> Weights:
        picked: Weights = {}
        for s, names in enumerate(self.stages):
            weights = self.versions[self.rule.backward_version(t, n, s)]
            shift = self.rule.delay(s) if self.rule.corrects(t) else 0.0
            picked.update({name: weights[name] - shift * self.delta[name] for name in names})
        return picked

    def rate_factor(self, t: int, s: int) -> float:
        return self.rule.rate_factor(t, s)

    def _clip(self, total: Weights) -> None:
        if self.clip is None:
            return
        scope, limit = self.clip
        groups = self.stages if scope == "stage" else [[name for names in self.stages for name in names]]
        for names in groups:
            norm = math.sqrt(sum(float((total[name] ** 2).sum()) for name in names))
            if norm > limit:
                for name in names:
                    total[name] = total[name] * (limit / norm)

    def _update(self, t: int, total: Weights, rate: float) -> None:
        new: Weights = {}
        self.rates.append([rate * self.rate_factor(t, s) for s in range(self.rule.stages)])
        for s, names in enumerate(self.stages):
            gamma = self.rule.decay_per_step(s)
            alpha = self.rates[t][s]
            for name in names:
                old = self.versions[t][name]
                new[name] = self.optimizer.update(old, total[name], alpha, self.moments[name], t + 1)
                self.delta[name] = gamma * self.delta[name] + (1 - gamma) * (new[name] - old)
        self.versions.append(new)
        self.states.append({name: dict(state) for name, state in self.moments.items()})


def dense_gradient(
    forward: Weights, backward: Weights, microbatch: tuple[Tensor, Tensor, int], step: int, n: int
) -> tuple[Tensor, Weights]:
    """Loss and gradient of linear layers "0", "2", "4", ... with ReLU between, by hand.

    microbatch = (inputs [b, features], integer labels [b], examples in the whole minibatch). Softmax cross
    entropy, summed over the microbatch and divided by the minibatch's count. No autograd: the forward uses
    `forward`, the products with transposed weight matrices use `backward`.
    """
    x, labels, count = microbatch
    layers = sorted({int(name.split(".")[0]) for name in forward})
    inputs, values = [], x
    for layer in layers:
        inputs.append(values)
        values = values @ forward[f"{layer}.weight"].T + forward[f"{layer}.bias"]
        if layer != layers[-1]:
            values = values.clamp(min=0)
    exponentials = torch.exp(values - values.max(dim=1, keepdim=True).values)
    probabilities = exponentials / exponentials.sum(dim=1, keepdim=True)
    rows = torch.arange(len(labels))
    loss = -torch.log(probabilities[rows, labels]).sum() / count
    signal = probabilities.clone()
    signal[rows, labels] -= 1
    signal /= count
    grads: Weights = {}
    for layer, given in zip(reversed(layers), reversed(inputs), strict=True):
        grads[f"{layer}.weight"] = signal.T @ given
        grads[f"{layer}.bias"] = signal.sum(dim=0)
        signal = (signal @ backward[f"{layer}.weight"]) * (given > 0)
    return loss, grads
