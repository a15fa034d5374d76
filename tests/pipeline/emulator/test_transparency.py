"""With zero delays the emulator is plain PyTorch: microbatches' gradients added up, then one optimizer step.

Equal to the last bit: weights, BatchNorm statistics and losses; any cut, uneven microbatches, both memory
formats, float32 and bfloat16, with dropout on.
"""

import copy

import pytest
import torch
from torch import nn
from torchvision.models.resnet import BasicBlock

from pipemare_exp.seeding import key
from tests.pipeline.reference import SGD, Adam, Rule
from tests.pipeline.toys import emulator, keyed_mask, loss, minibatches, mixed_net, torch_optimizer

SEED = 5
OPTIMIZERS = {
    "sgd": SGD(0.9, weight_decay=0.01),
    "nesterov": SGD(0.9, nesterov=True, weight_decay=0.01),
    "adam": Adam((0.9, 0.98), weight_decay=0.01),
    "adamw": Adam((0.9, 0.98), weight_decay=0.1, decoupled=True),
}


def plain_net(dtype):
    # In bfloat16 torch's own `add(alpha=)` rounds twice in the last elements of a tensor, those that do not fill
    # vector registers (up to 63), and once in the rest: an optimizer over separate parameters then differs from
    # one over a flat buffer. With sizes that are multiples of 64 there are no such elements.
    return mixed_net(dtype) if dtype != torch.bfloat16 else mixed_net(dtype, sizes=(64, 64, 64, 64))


def residual_net(dtype):
    width, classes = (4, 3) if dtype != torch.bfloat16 else (64, 64)
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        BasicBlock(width, width),
        nn.Dropout(0.1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(width, classes),
    ).to(dtype)


def alpha(step):
    return 0.03 * (1 + step % 3)


def train_plainly(net, data, optimizer, seed):
    """Ordinary accumulation over microbatches; each dropout call is seeded by its key. Returns the losses."""
    made = torch_optimizer(optimizer)([{"params": list(net.parameters())}])
    place, calls = [0, 0], {}

    def hook(name):
        def seed_call(module, args):
            call = calls.get(name, 0)
            calls[name] = call + 1
            torch.manual_seed(key(seed, *place, name, call))

        return seed_call

    for name, module in net.named_modules():
        if isinstance(module, nn.Dropout):
            module.register_forward_pre_hook(hook(name))
    losses = []
    for step, minibatch in enumerate(data):
        made.zero_grad()
        total = 0
        for n, microbatch in enumerate(minibatch):
            if microbatch is None:
                continue
            place[:] = [step, n]
            calls.clear()
            value = loss(net, microbatch)
            value.backward()
            total = total + value.detach().float()
        made.param_groups[0]["lr"] = alpha(step)
        made.step()
        losses.append(total)
    return losses


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("make", [plain_net, residual_net])
def test_equals_plain_accumulation(make, dtype, layout, optimizer):
    layout = torch.channels_last if layout == "channels_last" else torch.contiguous_format
    data = [
        [m and (m[0].to(memory_format=layout), *m[1:]) for m in minibatch]
        for minibatch in minibatches((2, 6, 6), 3, 5, dtype)
    ]
    plain = make(dtype).to(memory_format=layout)
    start = copy.deepcopy(plain)
    losses = train_plainly(plain, data, OPTIMIZERS[optimizer], SEED)
    for boundaries in ([0], [0, 3], [0, 1, 2, 3, 4, 5]):
        net = copy.deepcopy(start)
        fast = emulator(
            net,
            data[0][0][0],
            boundaries,
            Rule("gpipe", len(boundaries), 3),
            OPTIMIZERS[optimizer],
            3,
            seed=SEED,
        )
        for step, minibatch in enumerate(data):
            assert torch.equal(fast.step(minibatch, loss, alpha(step)), losses[step])
        expected = plain.state_dict()
        for name, value in net.state_dict().items():
            assert torch.equal(value, expected[name]), (boundaries, name)
            assert value.stride() == expected[name].stride(), (boundaries, name)


@pytest.mark.parametrize("label", ["pipedream", "pipemare"])
def test_one_stage_in_alternating_slots_has_no_delay(label):
    """The only stage of an alternating pipeline has L = 0: an asynchronous method is then plain training."""
    data = list(minibatches((2, 6, 6), 3, 4, torch.float32))
    plain, net = mixed_net(torch.float32), mixed_net(torch.float32)
    train_plainly(plain, data, OPTIMIZERS["sgd"], SEED)
    fast = emulator(
        net,
        data[0][0][0],
        [0],
        Rule(label, 1, 3, "alternating", 9 if label == "pipemare" else 0, 0.2 if label == "pipemare" else None),
        OPTIMIZERS["sgd"],
        3,
        seed=SEED,
    )
    for step, minibatch in enumerate(data):
        fast.step(minibatch, loss, alpha(step))
    for a, b in zip(net.parameters(), plain.parameters(), strict=True):
        assert torch.equal(a, b)


def test_uneven_microbatches_are_one_minibatch():
    """Microbatches of 5, 1 and 2 examples give the gradient of the mean over all 8: normalised once."""
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).double()
    whole = copy.deepcopy(net)
    x, labels = torch.randn(8, 4, dtype=torch.float64), torch.randint(0, 3, (8,))
    value = nn.functional.cross_entropy(whole(x), labels)
    value.backward()
    fast = emulator(net, x, [0, 1], Rule("gpipe", 2, 4), SGD(), 4)
    parts = [(x[a:b], labels[a:b], 8) for a, b in ((0, 5), (5, 6), (6, 8))]
    got = fast.step([*parts[:1], None, *parts[1:]], loss, 0.5)
    torch.testing.assert_close(got, value.detach(), rtol=1e-14, atol=0)
    for a, b in zip(net.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(a.detach(), (b - 0.5 * b.grad).detach(), rtol=0, atol=1e-14)


@pytest.mark.parametrize("boundaries", [[0], [0, 2, 4], [0, 1, 2, 3, 4, 5]])
def test_dropout_ignores_the_cut_and_other_draws(boundaries):
    """The masks are those of the keys, whatever the cut and whatever else draws from the global generator."""
    seen = []
    net = mixed_net(torch.float32)
    for name, module in net.named_modules():
        if isinstance(module, nn.Dropout):
            module.register_forward_hook(lambda m, args, out, name=name: seen.append((name, args[0].detach(), out)))
    fast = emulator(net, torch.zeros(2, 2, 6, 6), boundaries, Rule("gpipe", len(boundaries), 3), SGD(), 3, seed=SEED)
    seen.clear()
    for step, minibatch in enumerate(minibatches((2, 6, 6), 3, 4, torch.float32)):
        torch.rand(1 + 3 * step)
        fast.step(minibatch, loss, 0.01)
        torch.rand(2)
        for n, microbatch in enumerate(minibatch):
            for _ in range(2 if microbatch else 0):
                name, given, out = seen.pop(0)
                module = net.get_submodule(name)
                assert torch.equal(out, given * keyed_mask(SEED, step, n, name, 0, module.p, given))
    assert not seen


def test_each_call_of_a_dropout_has_its_own_mask():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.drop = nn.Linear(3, 200), nn.Dropout(0.5)
            self.masks = []

        def forward(self, x):
            ones = torch.ones(len(x), 200)
            self.masks.append((self.drop(ones), self.drop(ones)))
            return self.linear(x) * self.masks[-1][0]

    net = Twice()
    fast = emulator(net, torch.zeros(2, 3), [0], Rule("gpipe", 1, 2), SGD(), 2, seed=SEED)
    net.masks.clear()
    for _ in range(2):
        fast.step([torch.ones(2, 3), torch.ones(2, 3)], lambda m, x: m(x).sum(), 0.0)
    for k, masks in enumerate(net.masks):
        for call, mask in enumerate(masks):  # the counter starts again at every forward
            assert torch.equal(mask, keyed_mask(SEED, k // 2, k % 2, "drop", call, 0.5, mask))
    everything = [mask for masks in net.masks for mask in masks]
    assert all(not torch.equal(a, b) for i, a in enumerate(everything) for b in everything[:i])
