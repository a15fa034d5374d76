"""A pipeline whose every stage is one number, which notes what its forward and its backward read of it."""

import torch
from torch import Tensor, nn


class _Noting(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, seen):
        ctx.save_for_backward(weight)  # as real operations do: the backward looks at the storage it finds then
        ctx.seen = seen
        seen["forward"].append(weight.detach().flatten().clone())
        return x * 1.0

    @staticmethod
    def backward(ctx, grad):
        (weight,) = ctx.saved_tensors
        ctx.seen["backward"].append(weight.detach().flatten().clone())
        return grad, torch.zeros_like(weight), None


class Noting(nn.Linear):
    """Passes its input on; `seen["forward"]`, `seen["backward"]` list the weight [1] found at each pass."""

    def __init__(self):
        super().__init__(1, 1, bias=False)
        self.seen: dict[str, list[Tensor]] = {"forward": [], "backward": []}

    def forward(self, x: Tensor) -> Tensor:
        return _Noting.apply(x, self.weight, self.seen)


class Chain(nn.Module):
    """`stages` Noting modules, in float64, all weights zero. Input: any [1] tensor."""

    def __init__(self, stages: int):
        super().__init__()
        self.stages = nn.ModuleList(Noting() for _ in range(stages)).double()
        for module in self.stages:
            nn.init.zeros_(module.weight)

    def forward(self, x: Tensor) -> Tensor:
        for module in self.stages:
            x = module(x)
        return x

    def clear(self) -> None:
        for module in self.stages:
            for seen in module.seen.values():
                seen.clear()

    def read(self, kind: str) -> Tensor:
        """What each pass read, [stage, pass]."""
        return torch.stack([torch.cat(module.seen[kind]) for module in self.stages])


class Prescribed(torch.optim.Optimizer):
    """After the k-th step every weight is path(k), whatever the gradient; path(0) is the initial weight."""

    def __init__(self, groups, path):
        super().__init__(groups, {"lr": 0.0})
        self.path, self.count = path, 0

    @torch.no_grad()
    def step(self, closure=None):
        self.count += 1
        for group in self.param_groups:
            for p in group["params"]:
                p.fill_(self.path(self.count))


def one(model: nn.Module, microbatch: Tensor) -> Tensor:
    """The loss of a chain: its output."""
    return model(microbatch.clone().requires_grad_()).sum()
