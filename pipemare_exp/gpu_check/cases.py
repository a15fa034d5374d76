"""Small trainings that need no files: an emulator of a method on a ResNet, and minibatches of random images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from pipemare_exp import methods, models, optimizers, seeding
from pipemare_exp.pipeline.emulator.emulator import Emulator
from pipemare_exp.pipeline.emulator.ways import Execution
from pipemare_exp.pipeline.model.units import weight_units
from pipemare_exp.pipeline.shape import Pipeline

# T1 and T3 are short, so that a few dozen steps go through all of their phases.
METHODS: dict[str, dict[str, Any]] = {
    "gpipe": {"name": "gpipe"},
    "pipedream": {"name": "pipedream"},
    "async": {"name": "pipemare"},
    "t1+t2": {"name": "pipemare", "lr_rescheduling_steps": 40, "decay": 0.5},
    "t1+t2+t3": {"name": "pipemare", "lr_rescheduling_steps": 20, "decay": 0.5, "warmup_steps": 4},
}
Microbatch = tuple[Tensor, Tensor, int]


@dataclass(frozen=True)
class Case:
    """A model (`width` None: its own), N microbatches of `size` images each."""

    model: str
    microbatches: int = 8
    size: int = 8
    width: int | None = None
    dtype: torch.dtype = torch.float32

    def build(self, device: torch.device) -> nn.Module:
        """The model in training mode; the same initial weights on every device."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seeding.key(0, "init"))
            model = models.build(self.model, width=self.width)
        return model.to(device, self.dtype).to(memory_format=torch.channels_last).train()

    def emulator(self, method: str, device: torch.device, **execution: Any) -> Emulator:
        """`method` with one stage to each weight unit; `execution`: how it computes (see `Execution`)."""
        model = self.build(device)
        units = weight_units(model, lambda module: self._probe(module, device))
        optimizer = optimizers.optimizer("sgd", momentum=0.9, weight_decay=5e-4)
        made = methods.build(**METHODS[method])
        pipeline = Pipeline(units, range(len(units)), self.microbatches)
        return Emulator(model, pipeline, made, optimizer, execution=Execution(**execution))

    def _probe(self, model: nn.Module, device: torch.device) -> None:
        model.eval()
        with torch.no_grad():
            model(self._images(1, torch.Generator().manual_seed(0)).to(device))
        model.train()

    def _images(self, count: int, draw: torch.Generator) -> Tensor:
        images = torch.randn(count, 3, 32, 32, generator=draw).to(self.dtype)
        return images.to(memory_format=torch.channels_last)

    def minibatch(self, index: int, device: torch.device, last: bool = False) -> list[Microbatch | None]:
        """Minibatch `index`, the same on every device. `last`: a smaller one, uneven, with an empty microbatch."""
        draw = seeding.generator("cpu", "gpu_check", index)
        sizes = [self.size] * self.microbatches
        if last:
            sizes = [max(self.size // 2, 1)] + [max(self.size // 2 - 1, 1)] * (self.microbatches - 2) + [0]
            sizes = sizes[-self.microbatches :]
        count = sum(sizes)
        labels = torch.randint(0, 10, (count,), generator=draw).to(device)
        images = self._images(count, draw).to(device)
        parts = zip(images.split(sizes), labels.split(sizes), strict=True)
        return [(x, y, count) if len(y) else None for x, y in parts]


def loss(model: nn.Module, microbatch: Microbatch) -> Tensor:
    """The microbatch's share of the minibatch's mean cross entropy."""
    images, labels, count = microbatch
    return functional.cross_entropy(model(images), labels, reduction="sum") / count


def synchronize(device: torch.device) -> None:
    """Wait until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
