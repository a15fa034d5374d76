"""The data sets: which there are, what each needs, and the arrays that image sets come as."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import numpy as np

from pipemare_exp.errors import UserError, suggest

DATASETS = {
    "digits": "pipemare_exp.data.digits:describe",
    "cifar10": "pipemare_exp.data.cifar10:describe",
    "numerals": "pipemare_exp.data.numerals:describe",
    "iwslt14": "pipemare_exp.data.iwslt14:describe",
    "multi30k": "pipemare_exp.data.multi30k:describe",
    "cpusmall": "pipemare_exp.theory.regression_data:describe",
}
"""Data set name -> "module:function" that returns its `Description`; imported when asked for."""

VALIDATION_SEED = 20210405
"""Fixed, so that every run, whatever its seed, holds out the same images."""


@dataclass(frozen=True)
class Description:
    """What `pipemare data` knows of a data set.

    `files` are relative to the data root; all of them there means the data set is prepared; none at all
    means that it needs no preparation (bundled or generated). `others` are sets of files that serve as well.
    `prepare(root)` makes them, and returns a sentence that says what it did; it raises UserError with the remedy when
    it cannot. `by_hand` says what to do where nothing can be fetched.
    """

    name: str
    what: str
    files: tuple[str, ...] = ()
    prepare: Callable[[Path], str] | None = None
    others: tuple[tuple[str, ...], ...] = ()
    by_hand: str = ""


@dataclass(frozen=True)
class ImageArrays:
    """An image data set in memory: uint8 images (n, height, width, channels) and int64 labels (n,)."""

    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray


def describe(name: str) -> Description:
    """The description of one data set; UserError with the nearest name for an unknown one."""
    if name not in DATASETS:
        raise UserError(f'unknown data set "{name}"; allowed: {", ".join(DATASETS)}{suggest(name, DATASETS)}')
    module, function = DATASETS[name].split(":")
    return getattr(import_module(module), function)()


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
