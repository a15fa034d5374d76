"""Layers that take two weights: one for the forward, another for the products of the backward.

Each `autograd.Function` here is written from the layer's derivative, with the activations that the forward
left and the backward's weight in the input's gradient. `Net` walks a module tree with them, and keeps
BatchNorm's running statistics itself.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock

from pipemare_exp.models.gpt import GPT, CausalAttention


class Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, w_back, stride, padding):
        ctx.save_for_backward(x, w_back)
        ctx.where = (stride, padding)
        return F.conv2d(x, w, None, stride, padding)

    @staticmethod
    def backward(ctx, grad):
        x, w_back = ctx.saved_tensors
        stride, padding = ctx.where
        back = torch.nn.grad.conv2d_input(x.shape, w_back, grad, stride, padding)
        return back, torch.nn.grad.conv2d_weight(x, w_back.shape, grad, stride, padding), None, None, None


class Affine(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, w_back):
        ctx.save_for_backward(x, w_back)
        return x @ w.T

    @staticmethod
    def backward(ctx, grad):
        x, w_back = ctx.saved_tensors
        rows = grad.reshape(-1, grad.shape[-1])
        return grad @ w_back, rows.T @ x.reshape(-1, x.shape[-1]), None


class Normalise(torch.autograd.Function):
    """scale * (x - mean) / sqrt(variance + eps), moments over `dims`; `scale` has as many dimensions as x."""

    @staticmethod
    def forward(ctx, x, scale, scale_back, dims, eps):
        mean = x.mean(dims, keepdim=True)
        inverse = 1 / torch.sqrt(((x - mean) ** 2).mean(dims, keepdim=True) + eps)
        normal = (x - mean) * inverse
        ctx.save_for_backward(normal, inverse, scale_back)
        ctx.dims = dims
        return normal * scale

    @staticmethod
    def backward(ctx, grad):
        normal, inverse, scale_back = ctx.saved_tensors
        over = [i for i in range(grad.dim()) if scale_back.shape[i] == 1]
        grad_scale = (grad * normal).sum(over, keepdim=True)
        inner = grad * scale_back
        back = inverse * (
            inner - inner.mean(ctx.dims, keepdim=True) - normal * (inner * normal).mean(ctx.dims, keepdim=True)
        )
        return back, grad_scale, None, None, None


def _channels(values: Tensor, like: Tensor) -> Tensor:
    return values.reshape(1, -1, *[1] * (like.dim() - 2))


class Net:
    """Runs `module` on two dictionaries of weights; holds running statistics by module name.

    `mask(name, call, p, values)` gives a dropout's mask, already scaled by 1/(1-p), for its `call`-th call
    (0-based) within the forward. The module itself is only read for its structure.
    """

    def __init__(self, module: nn.Module, mask: Callable[[str, int, float, Tensor], Tensor] | None = None):
        self.module, self.mask = module, mask
        self.statistics = {
            name: (m.running_mean.clone(), m.running_var.clone())
            for name, m in module.named_modules()
            if isinstance(m, nn.BatchNorm2d)
        }
        self.calls: dict[str, int] = {}

    def __call__(self, forward: dict[str, Tensor], backward: dict[str, Tensor], x: Tensor) -> Tensor:
        self.forward, self.backward, self.calls = dict(forward), dict(backward), {}
        return self.run(self.module, "", x)

    def pair(self, name: str, kind: str) -> tuple[Tensor, Tensor]:
        key = f"{name}.{kind}" if name else kind
        return self.forward[key], self.backward[key]

    def run(self, m: nn.Module, name: str, x: Tensor) -> Tensor:
        if isinstance(m, nn.Sequential):
            for child, part in m.named_children():
                x = self.run(part, f"{name}.{child}" if name else child, x)
            return x
        if isinstance(m, BasicBlock):
            return self.block(m, name, x)
        if isinstance(m, GPT):
            return self.gpt(m, x)
        if isinstance(m, nn.Conv2d):
            assert m.groups == 1 and m.dilation == (1, 1)
            y = Convolution.apply(x, *self.pair(name, "weight"), m.stride, m.padding)
            return y if m.bias is None else y + _channels(self.pair(name, "bias")[0], y)
        if isinstance(m, nn.Linear):
            y = Affine.apply(x, *self.pair(name, "weight"))
            return y if m.bias is None else y + self.pair(name, "bias")[0]
        if isinstance(m, nn.BatchNorm2d):
            return self.batch_norm(m, name, x)
        if isinstance(m, nn.LayerNorm):
            w, w_back = (value.reshape([1] * (x.dim() - 1) + [-1]) for value in self.pair(name, "weight"))
            return Normalise.apply(x, w, w_back, (x.dim() - 1,), m.eps) + self.pair(name, "bias")[0]
        if isinstance(m, nn.Embedding):
            return self.pair(name, "weight")[0][x]
        if isinstance(m, nn.ReLU):
            return torch.where(x > 0, x, torch.zeros_like(x))
        if isinstance(m, nn.Dropout):
            return self.drop(name, m.p, x)
        if isinstance(m, nn.GELU):
            assert m.approximate == "tanh"
            return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
        if isinstance(m, CausalAttention):
            return self.attention(m, name, x)
        if isinstance(m, nn.Flatten):
            return x.reshape(x.shape[0], -1)
        if isinstance(m, nn.AdaptiveAvgPool2d):
            return x.mean((2, 3), keepdim=True)
        raise TypeError(type(m).__name__)

    def drop(self, name: str, p: float, x: Tensor) -> Tensor:
        if p == 0:
            return x
        call = self.calls.get(name, 0)
        self.calls[name] = call + 1
        assert self.mask is not None
        return x * self.mask(name, call, p, x)

    def gpt(self, m: GPT, x: Tensor) -> Tensor:
        if m.size.tying == "decoder":  # a weight has the name of its first use
            for weights in (self.forward, self.backward):
                weights["head.weight"] = weights["tokens.weight"]
        x = self.run(m.tokens, "tokens", x) + self.run(m.positions, "positions", torch.arange(x.shape[1]))
        x = self.run(m.dropout, "dropout", x)
        for index, block in enumerate(m.blocks):
            for children in ("norm1 qkv attention out dropout1", "norm2 up gelu down dropout2"):
                y = x
                for child in children.split():
                    y = self.run(getattr(block, child), f"blocks.{index}.{child}", y)
                x = x + y
        return self.run(m.head, "head", self.run(m.norm, "norm", x))

    def attention(self, m: CausalAttention, name: str, x: Tensor) -> Tensor:
        sequences, length, width = x.shape[0], x.shape[1], x.shape[2] // 3
        q, k, v = (
            side.reshape(sequences, length, m.heads, width // m.heads).transpose(1, 2) for side in x.split(width, -1)
        )
        later = torch.ones(length, length, dtype=torch.bool).triu(1)
        scores = (q @ k.transpose(-1, -2) / math.sqrt(width / m.heads)).masked_fill(later, -math.inf)
        weights = self.drop(name, m.dropout, scores.softmax(-1))
        return (weights @ v).transpose(1, 2).reshape(sequences, length, width)

    def batch_norm(self, m: nn.BatchNorm2d, name: str, x: Tensor) -> Tensor:
        over = (0, *range(2, x.dim()))
        count = x.numel() // x.shape[1]
        running_mean, running_var = self.statistics[name]
        with torch.no_grad():
            mean = x.mean(over)
            unbiased = ((x - _channels(mean, x)) ** 2).sum(over) / (count - 1)
            self.statistics[name] = (
                running_mean + m.momentum * (mean - running_mean),
                running_var + m.momentum * (unbiased - running_var),
            )
        w, w_back = (_channels(value, x) for value in self.pair(name, "weight"))
        return Normalise.apply(x, w, w_back, over, m.eps) + _channels(self.pair(name, "bias")[0], x)

    def block(self, m: BasicBlock, name: str, x: Tensor) -> Tensor:
        def part(child: str, values: Tensor) -> Tensor:
            return self.run(getattr(m, child), f"{name}.{child}" if name else child, values)

        y = part("bn1", part("conv1", x)).clamp(min=0)
        y = part("bn2", part("conv2", y))
        short = x if m.downsample is None else part("downsample", x)
        return (y + short).clamp(min=0)
