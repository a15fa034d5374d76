"""Image classification: which images a minibatch holds, their loss, and the accuracy.

The whole data set sits on the device as uint8. Everything random is drawn on the CPU, from generators keyed
by (seed, purpose, epoch, index), so that a seed means the same minibatches on every device; the work on the
images (gather, crop, flip, normalise) is done on the device, for a whole minibatch at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from pipemare_exp import data, models, seeding
from pipemare_exp.data.cache import data_root
from pipemare_exp.data.images import Augmentation, ImageArrays, Images, hold_out
from pipemare_exp.errors import UserError

EVALUATION_BATCH = 1000


@dataclass(frozen=True)
class Microbatch:
    """Images (b, C, H, W), labels (b,), and `count`, the number of examples in the whole minibatch."""

    inputs: Tensor
    targets: Tensor
    count: int


@dataclass(frozen=True)
class Split:
    """Images (n, H, W, C) as uint8 and labels (n,) as int64, on the device."""

    images: Tensor
    labels: Tensor


class ImageClassification:
    """A `Task` (see `tasks.base`) over an image data set in memory.

    `arrays` are split into train, validation (`validation` images held out of train) and test; pixels are
    normalised by the mean and standard deviation of the training images left, per channel. With validation
    > 0 the test images are not even kept.
    """

    metric = "accuracy"
    text = None

    def __init__(
        self,
        name: str,
        arrays: ImageArrays,
        *,
        seed: int,
        batch_size: int,
        microbatches: int,
        model: str,
        width: int | None = None,
        validation: int = 0,
        augmentation: Augmentation | None = None,
        device: torch.device | str = "cpu",
        channels_last: bool = False,
    ):
        train, held_out = hold_out(len(arrays.x_train), validation)
        if not 1 <= batch_size <= len(train):
            raise UserError(f"data.batch_size={batch_size}; allowed: 1 to the {len(train)} training images")
        self.name, self.seed, self.augmentation = name, seed, augmentation
        self.batch_size, self.microbatches = batch_size, microbatches
        self.model_name, self.width, self.classes = model, width, int(arrays.y_train.max()) + 1
        self.device, self.channels_last = torch.device(device), channels_last
        self.notes: dict[str, str] = {}
        self.subset: int | None = None
        self.eval_split = "valid" if validation else "test"
        self.train = self._split(arrays.x_train[train], arrays.y_train[train])
        if validation:
            self.held_out = self._split(arrays.x_train[held_out], arrays.y_train[held_out])
        else:
            self.held_out = self._split(arrays.x_test, arrays.y_test)
        mean, std = channel_statistics(arrays.x_train[train])
        self._mean, self._std = (torch.tensor(x, dtype=torch.float32, device=device) for x in (mean, std))
        self.steps_per_epoch = -(-len(train) // batch_size)

    def _split(self, images: np.ndarray, labels: np.ndarray) -> Split:
        return Split(torch.from_numpy(images).to(self.device), torch.from_numpy(labels).to(self.device))

    def build_model(self) -> nn.Module:
        """The model with weights drawn from (seed, "init") on the CPU, not from the global generator."""
        self._check_model()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seeding.key(self.seed, "init"))
            model = models.build(self.model_name, num_classes=self.classes, width=self.width)
        model.to(self.device)
        return model.to(memory_format=torch.channels_last) if self.channels_last else model

    def _check_model(self) -> None:
        height, width, channels = self.train.images.shape[1:]
        shape = models.images(self.model_name)
        if shape != (channels, height, width):
            other = models.find(self.model_name).takes
            takes = other if shape is None else f"images of {shape[1]}x{shape[2]} with {shape[0]} channels"
            allowed = ", ".join(models.taking("images", (channels, height, width)))
            raise UserError(
                f"model.name={self.model_name} takes {takes}, but {self.name} has {height}x{width} with {channels}; "
                f"allowed for {self.name}: {allowed}"
            )

    def probe(self, model: nn.Module) -> None:
        modes = [(module, module.training) for module in model.modules()]
        model.eval()
        with torch.no_grad():
            model(self._prepare(self.train.images[:1]))
        for module, training in modes:
            module.training = training

    def minibatches(self, epoch: int, start: int = 0) -> Iterator[list[Microbatch | None]]:
        """The epoch's minibatches from index `start` on; the last one holds what is left of the images.

        A minibatch is augmented whole and then cut into microbatches whose sizes differ by at most one, so
        that its images do not depend on the number of microbatches.
        """
        order = torch.randperm(len(self.train.labels), generator=seeding.generator("cpu", self.seed, "order", epoch))
        order = order.to(self.device)
        for index in range(start, self.steps_per_epoch):
            chosen = order[index * self.batch_size : (index + 1) * self.batch_size]
            images = self.train.images[chosen]
            if self.augmentation is not None:
                generator = seeding.generator("cpu", self.seed, "augment", epoch, index)
                images = augment(images, self.augmentation, generator)
            inputs, targets = self._prepare(images), self.train.labels[chosen]
            parts = zip(inputs.tensor_split(self.microbatches), targets.tensor_split(self.microbatches), strict=True)
            yield [Microbatch(x, y, len(chosen)) if len(y) else None for x, y in parts]

    def _prepare(self, images: Tensor) -> Tensor:
        """uint8 (b, H, W, C) -> normalised float32 (b, C, H, W) in the task's memory format."""
        floats = images.float().sub_(self._mean).div_(self._std).permute(0, 3, 1, 2)  # channels-last strides
        if self.channels_last:
            return floats
        # Not contiguous(): it leaves one-channel images as they are, and torch takes those for channels-last.
        return floats.clone(memory_format=torch.contiguous_format)

    def loss(self, model: nn.Module, microbatch: Microbatch) -> Tensor:
        """Sum of the microbatch's cross entropies (nats) / number of examples in the whole minibatch."""
        logits = model(microbatch.inputs)
        return functional.cross_entropy(logits, microbatch.targets, reduction="sum") / microbatch.count

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Mean cross entropy (nats) and accuracy (percent) over `eval_split`; the caller sets eval mode."""
        losses = torch.zeros((), dtype=torch.float64, device=self.device)
        correct = torch.zeros((), dtype=torch.int64, device=self.device)
        count = len(self.held_out.labels)
        with torch.no_grad():
            for start in range(0, count, EVALUATION_BATCH):
                labels = self.held_out.labels[start : start + EVALUATION_BATCH]
                logits = model(self._prepare(self.held_out.images[start : start + EVALUATION_BATCH])).float()
                losses += functional.cross_entropy(logits, labels, reduction="sum")
                correct += (logits.argmax(1) == labels).sum()
        return {"loss": losses.item() / count, self.metric: 100.0 * correct.item() / count}

    def test(self, model: nn.Module, checkpoints: Any = None) -> dict[str, float] | None:
        """{"accuracy": percent} of the test images, or None when a validation set was held out for tuning."""
        return {"accuracy": self.evaluate(model)["accuracy"]} if self.eval_split == "test" else None


def augment(images: Tensor, augmentation: Augmentation, generator: torch.Generator) -> Tensor:
    """Crop and flip a batch of images (b, H, W, C), each by its own draw from the (CPU) `generator`.

    Draws in this order: vertical offsets, horizontal offsets (both 0 ... 2 padding), flips.
    """
    count, height, width, _ = images.shape
    padding = augmentation.padding
    offsets = torch.randint(0, 2 * padding + 1, (2, count), generator=generator)
    columns = torch.arange(width).expand(count, width)
    if augmentation.flip:
        flips = torch.randint(0, 2, (count, 1), generator=generator).bool()
        columns = torch.where(flips, columns.flip(1), columns)
    rows = (offsets[0, :, None] + torch.arange(height)).to(images.device)
    columns = (offsets[1, :, None] + columns).to(images.device)
    padded = functional.pad(images, (0, 0, padding, padding, padding, padding))
    each = torch.arange(count, device=images.device)
    return padded[each[:, None, None], rows[:, :, None], columns[:, None, :]]


def channel_statistics(images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation per channel of uint8 images (n, H, W, C), in float64 of shape (C,).

    Taken from the histogram of each channel: exact, and without a float copy of the data set.
    """
    levels = np.arange(256)
    counts = np.stack([np.bincount(images[..., c].ravel(), minlength=256) for c in range(images.shape[-1])])
    total = counts.sum(1)
    mean = counts @ levels / total
    return mean, np.sqrt((counts * (levels - mean[:, None]) ** 2).sum(1) / total)


def build(cfg: Any, device: torch.device, memory_format: str) -> ImageClassification:
    """The task on the image data set that `cfg.task.name` names; see `tasks.build`."""
    described = data.describe(cfg.task.name)
    assert isinstance(described, Images)
    arrays = described.load(data_root(cfg.data.root))
    task = ImageClassification(
        described.name,
        arrays,
        seed=cfg.seed,
        batch_size=cfg.data.batch_size,
        microbatches=cfg.pipeline.microbatches,
        model=cfg.model.name,
        width=getattr(cfg.model, "width", None),
        validation=cfg.data.validation,
        augmentation=described.augmentation if cfg.data.augment else None,
        device=device,
        channels_last=memory_format == "channels_last",
    )
    train, test = described.published or (0, 0)
    if len(arrays.x_train) < train:
        task.subset = len(arrays.x_train)
        task.notes["train"] = f"{task.subset:,} of {train:,} images"
    if len(arrays.x_test) < test:
        task.notes["test"] = f"{len(arrays.x_test):,} of {test:,} images"
    if cfg.data.validation:
        task.notes["validation"] = f"{cfg.data.validation:,} images held out of train"
    return task
