"""scikit-learn's bundled handwritten digits: 1,797 grey images of 8x8, the data set that needs no download.

The test part of the "Optical Recognition of Handwritten Digits" set (E. Alpaydin, C. Kaynak, 1998, UCI
Machine Learning Repository); pixels are counts from 0 to 16.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np

from pipemare_exp.data.images import Augmentation, ImageArrays, Images

TEST = 397
FILE = Path("datasets", "data", "digits.csv.gz")
SPLIT_SEED = 1797
"""Fixed: the test images are the same ones in every run."""


def load() -> ImageArrays:
    """1,400 training and 397 test images of shape (8, 8, 1), uint8, by one fixed permutation."""
    table = _table()
    images = table[:, :-1].reshape(-1, 8, 8, 1)
    labels = table[:, -1].astype(np.int64)
    order = np.random.RandomState(SPLIT_SEED).permutation(len(images))
    train, test = np.sort(order[:-TEST]), np.sort(order[-TEST:])
    return ImageArrays(images[train], labels[train], images[test], labels[test])


def _table() -> np.ndarray:
    """A row per image: its 64 pixels and its label, uint8.

    Read from scikit-learn's file: to import the package costs more than a second of every run. Where the file is not
    in its place, the package is asked.
    """
    found = importlib.util.find_spec("sklearn")
    path = Path(found.origin).parent / FILE if found and found.origin else None
    if path is not None and path.is_file():
        return np.loadtxt(path, delimiter=",").astype(np.uint8)
    from sklearn.datasets import load_digits

    bundle = load_digits()
    return np.column_stack([bundle.data, bundle.target]).astype(np.uint8)


def describe() -> Images:
    """What `pipemare data list` says of the digits."""
    return Images(
        "digits",
        "handwritten digits, 1,400 train / 397 test grey images of 8x8 (in scikit-learn)",
        load=lambda root: load(),
        classes=10,
        augmentation=Augmentation(1, flip=False),
    )
