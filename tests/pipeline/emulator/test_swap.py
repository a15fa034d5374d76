"""Forward with weights A, swap, backward with weights B: what autograd then gives, against two-weight layers.

This is what delayed weights rest on: the storage is overwritten between forward and backward. Each module
type and dtype in use has to give the products with B at the activations of A. A mode that copies weights, or
keeps the old ones, shows at once: its gradient is that of A alone or of B alone, tens of per cent away.
"""

import copy

import pytest
import torch
from torch import nn
from torchvision.models.resnet import BasicBlock

from pipemare_exp.models.gpt import GPT, Size
from tests.pipeline.reference import Rule
from tests.pipeline.toys import emulator
from tests.pipeline.two_weights import Net

TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 5e-2}
IMAGES = (4, 3, 6, 6)


def strided_block():
    down = nn.Sequential(nn.Conv2d(3, 5, 1, stride=2, bias=False), nn.BatchNorm2d(5))
    return nn.Sequential(BasicBlock(3, 5, stride=2, downsample=down))


NETS = {
    "convolution": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 5, 3, stride=2, padding=1)),
        IMAGES,
    ),
    "pointwise": (lambda: nn.Sequential(nn.Conv2d(3, 4, 1, bias=False), nn.Conv2d(4, 5, 1)), IMAGES),
    "batchnorm": (
        lambda: nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)),
        IMAGES,
    ),
    "block": (lambda: nn.Sequential(BasicBlock(3, 3)), IMAGES),
    "strided_block": (strided_block, IMAGES),
    "linear": (lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5)), (7, 6)),
    "linear_sequence": (lambda: nn.Sequential(nn.Linear(6, 8, bias=False), nn.Linear(8, 5)), (3, 4, 6)),
    "layernorm": (lambda: nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 8), nn.LayerNorm(8)), (3, 4, 6)),
    "gpt": (lambda: GPT(Size(9, positions=4, layers=1, width=6, heads=2)), None),
    "tied_gpt": (lambda: GPT(Size(9, positions=4, layers=1, width=8, heads=2, tying="decoder")), None),
    "embedding": (lambda: nn.Sequential(nn.Embedding(9, 6), nn.LayerNorm(6), nn.Linear(6, 5)), None),
}


class Script(torch.optim.Optimizer):
    """Instead of a step: hands the gradients to `seen` and calls `write` to change the weights."""

    def __init__(self, groups, net, write):
        super().__init__(groups, {"lr": 0.0})
        self.net, self.write, self.seen = net, write, []

    def step(self, closure=None):
        self.seen.append({name: p.grad.detach().clone() for name, p in self.net.named_parameters()})
        self.write()


def probe(net, x, other, direction, beside):
    """Gradients (of the weights, and of x as "x") with forward at net's weights and backward at `other`, which is
    copied into the weights or, with `beside`, handed to autograd."""

    def write():
        for name, p in net.named_parameters():
            p.data.copy_(other[name])

    optimizers = []

    def make(groups):
        optimizers.append(Script(groups, net, write))
        return optimizers[0]

    fast = emulator(net, x.detach(), [0], Rule("pipemare", 1, 1), make, 1, beside=beside)  # P = N = 1: delay 1
    fast.step([x.detach()], lambda m, given: (m(given) * direction).sum(), 1.0)
    x.grad = None
    fast.step([x], lambda m, given: (m(given) * direction).sum(), 1.0)
    assert all(torch.equal(p, other[name]) for name, p in net.named_parameters())
    found = optimizers[0].seen[1]
    return found if x.grad is None else found | {"x": x.grad}


def expected(net, forward, backward, x, direction):
    def wide(t):
        return t.detach().double() if t.is_floating_point() else t

    leaves = {name: wide(w).requires_grad_() for name, w in forward.items()}
    x = wide(x).contiguous()
    if x.is_floating_point():
        x.requires_grad_()
    (Net(net)(leaves, {k: wide(w) for k, w in backward.items()}, x) * wide(direction)).sum().backward()
    grads = {name: w.grad for name, w in leaves.items()}
    return grads | ({"x": x.grad} if x.is_floating_point() else {})


def flat(grads):
    return torch.cat([grads[name].double().flatten() for name in sorted(grads)])


CASES = [
    (name, layout)
    for name, (_, shape) in NETS.items()
    for layout in (["contiguous", "channels_last"] if shape == IMAGES else ["contiguous"])
]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=lambda d: str(d).split(".")[1])
@pytest.mark.parametrize("beside", [False, True], ids=["copied", "beside"])
@pytest.mark.parametrize("name, layout", CASES)
def test_swap_between_forward_and_backward(name, layout, beside, dtype):
    make, shape = NETS[name]
    layout = torch.channels_last if layout == "channels_last" else torch.contiguous_format
    torch.manual_seed(0)
    net = make().to(dtype).to(memory_format=layout)
    x = torch.randint(0, 9, (3, 4)) if shape is None else torch.randn(shape).to(dtype).to(memory_format=layout)
    a = {k: torch.randn_like(p) * 0.5 + (p.dim() == 1) for k, p in net.named_parameters()}
    b = {k: torch.randn_like(p) * 0.5 + (p.dim() == 1) for k, p in net.named_parameters()}
    for k, p in net.named_parameters():
        p.data.copy_(a[k])
    direction = torch.randn_like(copy.deepcopy(net)(x).detach())
    right, old, new = (expected(net, *pair, x, direction) for pair in ((a, b), (a, a), (b, b)))
    for wrong in (old, new):
        assert (flat(wrong) - flat(right)).norm() > 0.2 * flat(right).norm()  # the case can tell them apart
    got = probe(net, x.requires_grad_() if x.is_floating_point() else x, b, direction, beside)
    for k, value in right.items():
        assert got[k].dtype == dtype
        if value.norm() < 1e-9 * flat(right).norm():  # a bias before a normalisation: exactly 0, computed as rounding
            assert got[k].double().norm() < TOLERANCE[dtype] * flat(right).norm()
        else:
            assert (got[k].double() - value).norm() <= TOLERANCE[dtype] * value.norm(), k


@pytest.mark.parametrize("name", NETS)
def test_two_weight_layers_with_one_weight_are_autograd(name):
    """The reference itself: with the same weights twice, its gradients and statistics are the module's."""
    make, shape = NETS[name]
    torch.manual_seed(1)
    net = make().double()
    x = torch.randint(0, 9, (3, 4)) if shape is None else torch.randn(shape, dtype=torch.float64)
    weights = {k: p.detach().clone() for k, p in net.named_parameters()}
    walker = Net(net)
    leaves = {k: w.clone().requires_grad_() for k, w in weights.items()}
    out = walker(leaves, weights, x)
    direction = torch.randn_like(out)
    (out * direction).sum().backward()
    (net(x) * direction).sum().backward()
    for k, p in net.named_parameters():
        torch.testing.assert_close(leaves[k].grad, p.grad, rtol=1e-11, atol=1e-12)
    for k, (mean, var) in walker.statistics.items():
        torch.testing.assert_close(mean, net.get_submodule(k).running_mean, rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(var, net.get_submodule(k).running_var, rtol=1e-12, atol=1e-14)
