"""ResNets for small images, out of torchvision's blocks, and where each may be cut.

The CIFAR networks follow section 4.2 of He et al., "Deep Residual Learning for Image Recognition" (arXiv
1512.03385): a 3x3 stem, three groups of n basic blocks with 16, 32 and 64 channels, pooling, one linear
layer; 6n+2 layers. Their shortcuts are projections (convolution and BatchNorm) where the shape changes, as
in torchvision, so that ResNet-20 has 19+2 convolutions, as many BatchNorms, and one linear layer: 43 weight
units. ResNet-18, 50 and 152 are torchvision's, with the CIFAR stem (3x3, stride 1, no pooling): ResNet-50
has 107 weight units.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from torchvision.models.resnet import BasicBlock, Bottleneck, conv1x1, conv3x3

from pipemare_exp.errors import UserError
from pipemare_exp.pipeline.model.units import Piece

State = tuple[Tensor, ...]


@dataclass(frozen=True)
class Spec:
    """What tells networks apart: block type, blocks per group, first width, and the channels of their images."""

    block: type[BasicBlock] | type[Bottleneck]
    blocks: tuple[int, ...]
    width: int = 16
    channels: int = 3


IMAGES = {
    "digits_resnet": (1, 8, 8),
    "resnet20": (3, 32, 32),
    "resnet32": (3, 32, 32),
    "resnet56": (3, 32, 32),
    "resnet110": (3, 32, 32),
    "resnet18": (3, 32, 32),
    "resnet50": (3, 32, 32),
    "resnet152": (3, 32, 32),
}
"""The (channels, height, width) of the images that each is made for; read by `models` without importing this file."""

SPECS = {
    "digits_resnet": Spec(BasicBlock, (3, 3, 3), width=8, channels=1),
    "resnet20": Spec(BasicBlock, (3, 3, 3)),
    "resnet32": Spec(BasicBlock, (5, 5, 5)),
    "resnet56": Spec(BasicBlock, (9, 9, 9)),
    "resnet110": Spec(BasicBlock, (18, 18, 18)),
    "resnet18": Spec(BasicBlock, (2, 2, 2, 2), width=64),
    "resnet50": Spec(Bottleneck, (3, 4, 6, 3), width=64),
    "resnet152": Spec(Bottleneck, (3, 8, 36, 3), width=64),
}


def build(name: str, num_classes: int = 10, width: int | None = None) -> ResNet:
    """The ResNet of this name; `width` is the number of channels of its first group."""
    return ResNet(SPECS[name], num_classes=num_classes, width=width)


class ResNet(nn.Module):
    """A residual network on images of shape (B, spec.channels, height, height); gives (B, num_classes) logits.

    `width` (channels of the first group; doubled from group to group) replaces the one of the spec.
    Attribute names are torchvision's: conv1, bn1, layer1, layer2, ..., fc.
    """

    def __init__(self, spec: Spec, num_classes: int = 10, width: int | None = None):
        super().__init__()
        width = spec.width if width is None else width
        if width < 1:
            raise UserError(f"model.width={width}; it must be at least 1 (null: the model's own, {spec.width})")
        self.conv1 = conv3x3(spec.channels, width)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU()
        self.groups: list[str] = []
        inplanes = width
        for index, count in enumerate(spec.blocks):
            planes, stride = width * 2**index, 1 if index == 0 else 2
            layer = _group(spec.block, inplanes, planes, count, stride)
            self.groups.append(f"layer{index + 1}")
            self.add_module(self.groups[-1], layer)
            inplanes = planes * spec.block.expansion
        self.fc = nn.Linear(inplanes, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(module, nn.ReLU):
                # In place, it would overwrite what the stage before it keeps.
                module.inplace = False

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.bn1(self.conv1(x)))
        for group in self.groups:
            x = self.get_submodule(group)(x)
        return self._classify(x)

    def _classify(self, x: Tensor) -> Tensor:
        return self.fc(torch.flatten(functional.adaptive_avg_pool2d(x, 1), 1))

    def pieces(self) -> list[Piece]:
        """The network as callables from state to state, one per weight unit, in forward order.

        The state is the activation, and inside a block also its shortcut: `(x,) -> (h, x) -> ... -> (y,)`.
        Their composition equals `forward` bit for bit in outputs, gradients and running statistics, and
        none of them writes into its input.
        """
        pieces = [
            Piece("conv1", (self.conv1,), _on_first(self.conv1)),
            Piece("bn1", (self.bn1,), _on_first(self.bn1, self.relu)),
        ]
        for group in self.groups:
            for index, block in enumerate(self.get_submodule(group).children()):
                assert isinstance(block, BasicBlock | Bottleneck)
                pieces += _block_pieces(f"{group}.{index}", block)
        return [*pieces, Piece("fc", (self.fc,), lambda state: (self._classify(state[0]),))]


def _group(
    block: type[BasicBlock] | type[Bottleneck], inplanes: int, planes: int, count: int, stride: int
) -> nn.Sequential:
    """`count` blocks, of which the first changes the shape, with a projection as its shortcut if it does."""
    outplanes = planes * block.expansion
    shortcut = None
    if stride != 1 or inplanes != outplanes:
        shortcut = nn.Sequential(conv1x1(inplanes, outplanes, stride), nn.BatchNorm2d(outplanes))
    first = block(inplanes, planes, stride, shortcut)
    return nn.Sequential(first, *(block(outplanes, planes) for _ in range(count - 1)))


def _on_first(module: nn.Module, then: Callable[[Tensor], Tensor] | None = None) -> Callable[[State], State]:
    """Apply `module` (and `then`) to the state's first tensor; the rest, a shortcut, travels along."""

    def run(state: State) -> State:
        out = module(state[0])
        return (out if then is None else then(out), *state[1:])

    return run


def _block_pieces(path: str, block: BasicBlock | Bottleneck) -> list[Piece]:
    """A BasicBlock or Bottleneck of torchvision, one weight unit per piece.

    torchvision adds the shortcut in place (`out += identity`); here the sum is a new tensor, because `out`
    may be the state that another stage handed over. The values are the same.
    """
    depth = 3 if isinstance(block, Bottleneck) else 2
    relu, last_norm = block.relu, block.get_submodule(f"bn{depth}")

    def fork(state: State) -> State:
        return (block.conv1(state[0]), state[0])

    def join(state: State) -> State:
        return (relu(last_norm(state[0]) + state[1]),)

    def project(state: State) -> State:
        return (state[0], shortcut_conv(state[1]))

    def join_projected(state: State) -> State:
        return (relu(state[0] + shortcut_norm(state[1])),)

    pieces = [Piece(f"{path}.conv1", (block.conv1,), fork)]
    for k in range(1, depth):
        norm, conv = block.get_submodule(f"bn{k}"), block.get_submodule(f"conv{k + 1}")
        pieces.append(Piece(f"{path}.bn{k}", (norm,), _on_first(norm, relu)))
        pieces.append(Piece(f"{path}.conv{k + 1}", (conv,), _on_first(conv)))
    if block.downsample is None:
        return [*pieces, Piece(f"{path}.bn{depth}", (last_norm,), join)]
    shortcut_conv, shortcut_norm = block.downsample.children()
    return [
        *pieces,
        Piece(f"{path}.bn{depth}", (last_norm,), _on_first(last_norm)),
        Piece(f"{path}.downsample.0", (shortcut_conv,), project),
        Piece(f"{path}.downsample.1", (shortcut_norm,), join_projected),
    ]
