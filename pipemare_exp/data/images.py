"""What is an image data set, and which of its training images are held out?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from pipemare_exp.data.description import Description
from pipemare_exp.data.digests import Input, of_arrays
from pipemare_exp.errors import UserError

VALIDATION_SEED = 20210405
"""Fixed, so that every run, whatever its seed, holds out the same images."""


@dataclass(frozen=True)
class ImageArrays:
    """An image data set in memory: uint8 images (n, height, width, channels) and int64 labels (n,)."""

    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray


@dataclass(frozen=True)
class Augmentation:
    """Random crops of the image padded by `padding` black pixels a side, and with `flip` horizontal flips."""

    padding: int
    flip: bool


@dataclass(frozen=True)
class Images(Description):
    """An image data set: `load(root)` gives it from the data folder `root`.

    `augmentation` is what data.augment=true does to its images. `published`: the (train, test) images of the whole set,
    where a part of it serves too, which is then said in notes and in a run's name.
    """

    task: ClassVar[str | None] = "image_classification"

    load: Callable[[Path], ImageArrays] = field(kw_only=True)
    augmentation: Augmentation = field(kw_only=True)
    published: tuple[int, int] | None = field(default=None, kw_only=True)
    classes: int | None = field(default=None, kw_only=True)
    """How many there are, for what is said of a run's loss; None: not stated."""

    def inputs(self, root: Path, cfg: Any) -> dict[str, Input]:
        """Those of the files, or of the four arrays where there are none."""
        return super().inputs(root, cfg) or of_arrays(vars(self.load(root)))


def hold_out(count: int, validation: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices (train, validation) of `count` training examples, `validation` of them held out.

    The held-out ones are the last of a fixed permutation: a larger validation set contains every smaller
    one's images, and none of this depends on a run's seed. Both arrays are ascending.
    """
    if not 0 <= validation < count:
        raise UserError(
            f"data.validation={validation}; it must be at least 0 and leave some of the {count} training "
            f"examples to train on: 0 ... {count - 1}"
        )
    # RandomState's stream is frozen by NumPy's compatibility policy; that of Generator may change.
    order = np.random.RandomState(VALIDATION_SEED).permutation(count)
    cut = count - validation
    return np.sort(order[:cut]), np.sort(order[cut:])
