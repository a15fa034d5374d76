"""Does a GPU train what a CPU trains? Every tolerance is stated with its reason; each check has a size of a mistake
beside it, so that one sees that it could fail."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pipemare_exp.data import cifar10
from pipemare_exp.data.images import ImageArrays
from pipemare_exp.gpu_check.cases import METHODS, Case, loss
from pipemare_exp.pipeline.emulator.emulator import Emulator
from pipemare_exp.pipeline.weights.precision import allow_tf32
from pipemare_exp.tasks.image_classification import ImageClassification

WEIGHTS = 1e-9
"""Relative difference of weights in float64 after STEPS steps. Rounding is 1e-16 in each operation; last bits of the
first weights, changed at random, grew to 3e-14 at most on a CPU. Another method's weights are shown as the mistake."""
STEPS = 28
"""More than the first stage's delay of 85/4 = 21 steps, so that every version of the pipeline's fill is read."""
TIMES = 8.0
"""How much farther than the CPU's fp32 gradient the GPU's may lie from float64's. Both round at 6e-8, in different
orders, and flip a few ReLUs near zero, which is most of the distance (0.019 for ResNet-50 on a CPU) and grows like the
root of the rounding: fp32 kernels that are ten times coarser (Winograd's) stay within. With its weights alone rounded
as TF32 does, 5e-4, the same gradient lies 24 times farther (0.47)."""
PIXELS = 1e-6
"""Normalised pixels, at most 3 in size: two roundings of fp32 at 2.4e-7 each. The pixels themselves are bytes."""

CPU = torch.device("cpu")


def check(device: torch.device, quick: bool = False, say: Any = print) -> list[dict[str, Any]]:
    """Rows {check, difference, tolerance, mistake, passed}: all checks of `device` against the CPU.

    `quick`: two methods and a small network, to try the script itself.
    """
    rows: list[dict[str, Any]] = []

    def add(name: str, difference: float, tolerance: float, mistake: float | None) -> None:
        able = mistake is None or mistake > tolerance
        row = {"check": name, "difference": difference, "tolerance": tolerance, "mistake": mistake}
        rows.append({**row, "passed": difference <= tolerance and able})
        say(f"{'ok  ' if rows[-1]['passed'] else 'FAIL'} {name}: {difference:.2e} of {tolerance:.1e}"
            + ("" if mistake is None else f"  (a mistake: {mistake:.1e})"))  # fmt: skip

    add("minibatches of images", pixels(device), PIXELS, None)
    small = Case("resnet20", microbatches=4, size=3, width=4, dtype=torch.float64)
    methods = ["gpipe", "t1+t2"] if quick else list(METHODS)
    here = {name: trained(small, name, CPU) for name in methods}
    for name in methods:
        other = "gpipe" if name != "gpipe" else methods[-1]
        there = trained(small, name, device)
        mistake = distance(here[other], here[name])
        add(f"{name}: weights after {STEPS} steps, float64", distance(there, here[name]), WEIGHTS, mistake)
    large = Case("resnet20" if quick else "resnet50", microbatches=2, size=4)
    exact = gradient(replace(large, dtype=torch.float64), CPU)
    allow_tf32(False)
    yard = TIMES * relative(gradient(large, CPU), exact)
    found = relative(gradient(large, device), exact)
    allow_tf32(device.type == "cuda")
    rounded = relative(gradient(large, device), exact)
    allow_tf32(False)
    add(f"first gradient of {large.model}, fp32, against float64", found, yard, None)
    if device.type == "cuda":  # the least that it must differ by, or the option does nothing
        rows.append({"check": "precision=tf32 rounds more", "difference": rounded, "tolerance": found, "mistake": None,
                     "passed": rounded > found})  # fmt: skip
        say(f"{'ok  ' if rounded > found else 'FAIL'} with precision=tf32 it lies at {rounded:.2e}")
    return rows


def trained(case: Case, method: str, device: torch.device) -> list[Tensor]:
    """The stages' weights after STEPS steps, on the CPU."""
    emulator = case.emulator(method, device)
    for index in range(STEPS):
        emulator.step(case.minibatch(index, device, last=index % 5 == 4), loss, 0.02)
    return [flat.cpu() for flat in emulator.flat_weights()]


def distance(a: list[Tensor], b: list[Tensor]) -> float:
    """The largest difference of a stage's weights, relative to its largest weight."""
    return max(float((x - y).abs().max() / y.abs().max()) for x, y in zip(a, b, strict=True))


def gradient(case: Case, device: torch.device) -> Tensor:
    """The gradient of the first minibatch over all weights, float64 on the CPU."""
    emulator = _without_update(case.emulator("gpipe", device))
    emulator.step(case.minibatch(0, device), loss, 0.0)
    return emulator.flat.gradients.detach().cpu().double()


def _without_update(emulator: Emulator) -> Emulator:
    emulator.weights.update = lambda step, rate, observed=False: None  # type: ignore[method-assign]
    return emulator


def relative(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm())


def pixels(device: torch.device) -> float:
    """The largest difference between the two devices' augmented, normalised minibatches; infinite if labels differ."""
    draw = np.random.default_rng(0)
    images = draw.integers(0, 256, (96, 32, 32, 3), dtype=np.uint8)
    labels = np.arange(96) % 10
    arrays = ImageArrays(images, labels, images[:10], labels[:10])
    here, there = (
        ImageClassification("cifar10", arrays, seed=1, batch_size=32, microbatches=4, model="resnet20", device=where,
                            augmentation=cifar10.describe().augmentation, channels_last=True)
        for where in (CPU, device)
    )  # fmt: skip
    worst = 0.0
    for one, other in zip(here.minibatches(0), there.minibatches(0), strict=True):
        for mine, its in zip(one, other, strict=True):
            assert mine is not None and its is not None
            if not torch.equal(mine.targets, its.targets.cpu()):
                return float("inf")
            worst = max(worst, float((mine.inputs - its.inputs.cpu()).abs().max()))
    return worst
