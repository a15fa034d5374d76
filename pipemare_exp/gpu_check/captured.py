"""Are steps replayed from CUDA graphs the eager ones, to the last bit?"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pipemare_exp.gpu_check.cases import METHODS, Case, loss
from pipemare_exp.pipeline.emulator.emulator import Emulator
from pipemare_exp.pipeline.emulator.ways import Captured
from pipemare_exp.pipeline.weights.precision import CHOICES, allow_tf32

STEPS = 30


def check(device: torch.device, quick: bool = False, say: Any = print) -> list[dict[str, Any]]:
    """Rows {check, captured, passed, first_difference}: every method on ResNet-20 (43 stages), and T1+T2 on ResNet-50
    (107) in the precisions that the device has. Some minibatches are smaller, with uneven and empty microbatches.

    `quick`: one method and a small network, to try the script itself.
    """
    small = Case("resnet20", microbatches=4, size=8, width=8)
    methods = ["t1+t2"] if quick else list(METHODS)
    cells = [(small, method, "fp32", 10 if quick else STEPS) for method in methods]
    large = Case("resnet20", microbatches=4, size=2, width=2) if quick else Case("resnet50", microbatches=4)
    precisions = [name for name in CHOICES if device.type == "cuda" or name != "tf32"]
    cells += [(large, "t1+t2", precision, 10) for precision in precisions]
    rows = []
    for case, method, precision, steps in cells:
        name = f"{case.model} {method} {precision}, {steps} steps"
        allow_tf32(precision == "tf32")
        captured, difference = compare(case, method, precision, steps, device)
        passed = captured >= 2 and difference is None
        rows.append({"check": name, "captured": captured, "first_difference": difference, "passed": passed})
        say(f"{'ok  ' if passed else 'FAIL'} {name}: {captured} sets of shapes captured, "
            f"{'bitwise equal' if difference is None else 'differs first in ' + difference}")  # fmt: skip
    allow_tf32(False)
    return rows


def compare(case: Case, method: str, precision: str, steps: int, device: torch.device) -> tuple[int, str | None]:
    """How many sets of shapes were captured, and what differs first, if anything, after which step."""
    eager = case.emulator(method, device, precision=precision)
    graphs = case.emulator(method, device, precision=precision, graphs="on")
    assert isinstance(graphs.way, Captured)
    captures = graphs.way.captures
    for index in range(steps):
        minibatch = case.minibatch(index, device, last=index % 5 in (3, 4))
        values = [emulator.step(minibatch, loss, 0.02) for emulator in (eager, graphs)]
        if not torch.equal(*values):
            return captures.captured, f"the loss of step {index}: {values[0].item()} and {values[1].item()}"
        for (name, one), (_, other) in zip(_state(eager), _state(graphs), strict=True):
            if not torch.equal(one, other):
                return captures.captured, f"{name} after step {index}"
    return captures.captured, None


def _state(emulator: Emulator) -> list[tuple[str, Tensor]]:
    tensors = [("the gradients", emulator.flat.gradients)]
    tensors += [(f"the weights of stage {stage}", flat) for stage, flat in enumerate(emulator.flat_weights())]
    tensors += [(name, buffer) for name, buffer in emulator.model.named_buffers()]
    for kept in emulator.optimizer.state.values():
        tensors += [(f"the optimizer's {name}", value) for name, value in kept.items() if isinstance(value, Tensor)]
    return tensors
