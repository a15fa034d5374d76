"""What the benchmarks train: a model, a minibatch of random inputs, and the plain training step to compare with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pipemare_exp import methods, models, optimizers
from pipemare_exp.errors import UserError, suggest
from pipemare_exp.pipeline.emulator.emulator import Emulator
from pipemare_exp.pipeline.model.units import choose_boundaries, weight_units
from pipemare_exp.pipeline.shape import Pipeline

# model: size of a minibatch. 128 images are the usual CIFAR-10 minibatch of the small ResNets, taken for ResNet-50 too.
# The Transformer's is in target tokens: those of the laptop recipe for IWSLT14, half of the published 4,096. GPT-2's is
# in tokens: a sequence of 128 for each of 8 microbatches, so that its many weights and not its activations fill memory.
BATCHES = {"resnet20": 128, "resnet50": 128, "transformer_iwslt_de_en": 2048, "gpt2": 1024}

SMALL = [name for name in BATCHES if name != "gpt2"]
"""Those that any machine has the memory for."""

SENTENCE = 32
"""Tokens of each side of a sentence that the Transformer is timed with."""

SEQUENCE = 128
"""Tokens of a sequence that GPT-2 is timed with."""

METHODS: dict[str, dict[str, Any]] = {
    "gpipe": {"name": "gpipe"},
    "pipedream": {"name": "pipedream"},
    "async": {"name": "pipemare"},
    "t1+t2": {"name": "pipemare", "lr_rescheduling_steps": 1_000_000, "decay": 0.5},
}


@dataclass
class Workload:
    """A model and one minibatch for it, cut into N microbatches; `loss` is normalised by the minibatch."""

    name: str
    model: nn.Module
    microbatches: Sequence[Any]
    loss: Callable[[nn.Module, Any], Tensor]
    optimizer: Callable[[list[dict]], torch.optim.Optimizer]

    def plain_step(self) -> Callable[[], None]:
        """A step of plain PyTorch: gradients accumulated over the microbatches, one foreach optimizer."""
        optimizer = self.optimizer([{"params": list(self.model.parameters()), "lr": 0.01}])

        def step() -> None:
            optimizer.zero_grad(set_to_none=True)
            for microbatch in self.microbatches:
                self.loss(self.model, microbatch).backward()
            optimizer.step()

        return step

    def emulated(self, method: str, stages: int | None = None) -> Emulator:
        """The emulator of `method` on this workload, cut into `stages` (all weight units by default)."""

        @torch.no_grad()
        def probe(model: nn.Module) -> None:
            model.eval()
            self.loss(model, self.microbatches[0])
            model.train()

        units = weight_units(self.model, probe)
        boundaries = choose_boundaries([unit.numel for unit in units], stages or len(units))
        made = methods.build(**METHODS[method])
        return Emulator(self.model, Pipeline(units, boundaries, len(self.microbatches)), made, self.optimizer)


def check(name: str) -> None:
    """Raises UserError for a model that there is no workload of."""
    if name not in BATCHES:
        raise UserError(f"--model {name}: benchmarks know {', '.join(BATCHES)}{suggest(name, BATCHES)}")


def build(name: str, microbatches: int, batch: int | None = None, width: int | None = None) -> Workload:
    """The workload `name` with its minibatch cut into `microbatches`. Raises UserError for an unknown name.

    Inputs are random: only time and memory are looked at, never what is learnt.
    """
    check(name)
    batch = batch or BATCHES[name]
    torch.manual_seed(0)
    takes = models.find(name).takes
    if takes != "images":
        return (_translation if takes == "sentences" else _language_modelling)(name, microbatches, batch)
    model = models.build(name, width=width).to(memory_format=torch.channels_last).train()
    images = torch.randn(batch, 3, 32, 32).to(memory_format=torch.channels_last)
    labels = torch.randint(0, 10, (batch,))
    pairs = list(zip(images.tensor_split(microbatches), labels.tensor_split(microbatches), strict=True))

    def loss(model: nn.Module, pair: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(model(pair[0]), pair[1], reduction="sum") / batch

    return Workload(name, model, pairs, loss, optimizers.optimizer("sgd", momentum=0.9, weight_decay=5e-4))


def _translation(name: str, microbatches: int, tokens: int) -> Workload:
    """fairseq's Transformer with its criterion and AdamW, on sentences of one length without padding."""
    from pipemare_exp.models import fairseq_door as door
    from pipemare_exp.models import transformer

    source, target = (transformer.placeholder_dictionary(size) for size in transformer.IWSLT14_WORDS)
    model = models.build(name, source=source, target=target).train()
    criterion = door.criterion(target, label_smoothing=0.1)
    sentences = max(tokens // SENTENCE, 1)
    words = [torch.randint(4, len(side), (sentences, SENTENCE)) for side in (source, target, target)]
    given = zip(*(side.tensor_split(microbatches) for side in words), strict=True)

    def loss(model: nn.Module, sides: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        lengths = torch.full((len(sides[0]),), SENTENCE)
        logits = model(sides[0], lengths, sides[1])
        return criterion.compute_loss(model, (logits, None), {"target": sides[2]})[0] / (sentences * SENTENCE)

    return Workload(name, model, list(given), loss, optimizers.optimizer("adamw", betas=(0.9, 0.98), weight_decay=1e-4))


def _language_modelling(name: str, microbatches: int, tokens: int) -> Workload:
    """A GPT with AdamW, on sequences of one length."""
    model: Any = models.build(name).train()
    sequences = max(tokens // SEQUENCE, 1)
    given = torch.randint(model.size.vocabulary, (sequences, SEQUENCE + 1))

    def loss(model: nn.Module, part: Tensor) -> Tensor:
        logits = model(part[:, :-1]).flatten(0, 1)
        return F.cross_entropy(logits, part[:, 1:].flatten(), reduction="sum") / (sequences * SEQUENCE)

    parts = given.tensor_split(microbatches)
    return Workload(name, model, parts, loss, optimizers.optimizer("adamw", betas=(0.9, 0.95), weight_decay=0.1))
