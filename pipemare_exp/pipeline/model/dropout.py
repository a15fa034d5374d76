"""Dropout masks that depend on where in training they are drawn and never on how the model is cut.

Each call of a dropout draws from the default generator, seeded just before by the key (seed, step, microbatch, module
name, call number within the forward). The call number restarts with every forward, so that a recomputation repeats
the masks of the first forward.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from pipemare_exp.seeding import key

_DROPOUTS: list[type[nn.Module]] = [nn.modules.dropout._DropoutNd, nn.MultiheadAttention]


def register_dropout(module_type: type[nn.Module]) -> None:
    """Key the masks of a module type that calls dropout in its own forward."""
    if module_type not in _DROPOUTS:
        _DROPOUTS.append(module_type)


class KeyedDropout:
    """Hooks on every dropout of `model` that seed the default generator of `device` by the key of the call."""

    def __init__(self, model: nn.Module, seed: int, device: torch.device) -> None:
        self.seed = seed
        self._place: tuple[int, int] | None = None
        self._calls: Counter[str] = Counter()
        if device.type == "cuda":
            index = torch.cuda.current_device() if device.index is None else device.index
            torch.cuda.init()
            self._generator = torch.cuda.default_generators[index]
        else:
            self._generator = torch.default_generator
        self._modules: list[nn.Module] = []
        for name, module in model.named_modules():
            if any(isinstance(module, kind) for kind in _DROPOUTS):
                self._modules.append(module)
                module.register_forward_pre_hook(lambda m, _, n=name: self._seed_call(n, m))

    def draws(self) -> bool:
        """Whether some dropout draws masks in training (one whose probability is not known of counts as drawing)."""
        return any(_probability(module) > 0 for module in self._modules)

    def _seed_call(self, name: str, module: nn.Module) -> None:
        if self._place is None or not module.training:
            return
        call = self._calls[name]
        self._calls[name] += 1
        self._generator.manual_seed(key(self.seed, *self._place, name, call))

    @contextmanager
    def at(self, step: int, microbatch: int) -> Iterator[None]:
        """Within: a forward of `microbatch` (index in its minibatch) of `step`, its calls counted from 0.

        The generator starts from a key of its own here, so that random operations other than the registered dropouts
        are repeatable too, and is afterwards as it was.
        """
        self._place = (step, microbatch)
        self._calls.clear()
        before = self._generator.get_state()
        self._generator.manual_seed(key(self.seed, step, microbatch))
        try:
            yield
        finally:
            self._place = None
            self._generator.set_state(before)


def _probability(module: nn.Module) -> float:
    inner = getattr(module, "dropout_module", module)  # fairseq's attention
    for name in ("p", "dropout"):
        value = getattr(inner, name, None)
        if isinstance(value, int | float):
            return value
    return 1.0
