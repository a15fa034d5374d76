"""scikit-learn's bundled handwritten digits: 1,797 grey images of 8x8, the data set that needs no download.

The test part of the "Optical Recognition of Handwritten Digits" set (E. Alpaydin, C. Kaynak, 1998, UCI
Machine Learning Repository); pixels are counts from 0 to 16.
"""

from __future__ import annotations

import numpy as np

from pipemare_exp.data import Description, ImageArrays

TEST = 397
SPLIT_SEED = 1797
"""Fixed: the test images are the same ones in every run."""


def load() -> ImageArrays:
    """1,400 training and 397 test images of shape (8, 8, 1), uint8, by one fixed permutation."""
    from sklearn.datasets import load_digits

    bundle = load_digits()
    images = bundle.images.astype(np.uint8)[..., None]
    labels = bundle.target.astype(np.int64)
    order = np.random.RandomState(SPLIT_SEED).permutation(len(images))
    train, test = np.sort(order[:-TEST]), np.sort(order[-TEST:])
    return ImageArrays(images[train], labels[train], images[test], labels[test])


def describe() -> Description:
    """What `pipemare data list` says of the digits."""
    return Description("digits", "handwritten digits, 1,400 train / 397 test grey images of 8x8 (in scikit-learn)")
