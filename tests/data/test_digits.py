"""The digits: real images, one fixed split, and a validation set that overlaps with nothing."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from sklearn.datasets import load_digits

from pipemare_exp.data import digits
from pipemare_exp.data.images import hold_out
from pipemare_exp.errors import UserError


def rows(images: np.ndarray, labels: np.ndarray) -> list[bytes]:
    return sorted(image.tobytes() + bytes([label]) for image, label in zip(images, labels, strict=True))


def test_the_split_holds_every_image_once():
    arrays, bundle = digits.load(), load_digits()
    assert arrays.x_train.shape == (1400, 8, 8, 1) and arrays.x_test.shape == (397, 8, 8, 1)
    assert arrays.x_train.dtype == np.uint8 and arrays.y_train.dtype == np.int64
    together = rows(np.concatenate([arrays.x_train, arrays.x_test]), np.concatenate([arrays.y_train, arrays.y_test]))
    assert together == rows(bundle.images.astype(np.uint8), bundle.target)


def test_the_same_images_without_the_file(monkeypatch):
    first = digits.load()
    monkeypatch.setattr(digits, "FILE", digits.FILE.with_name("elsewhere.gz"))
    second = digits.load()
    for name in ("x_train", "y_train", "x_test", "y_test"):
        assert np.array_equal(getattr(first, name), getattr(second, name))
        assert getattr(first, name).dtype == getattr(second, name).dtype


def test_digits_do_not_import_scikit_learn():
    script = "import sys; from pipemare_exp.data import digits; digits.load(); sys.exit('sklearn' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_the_split_is_fixed_and_mixed():
    first, second = digits.load(), digits.load()
    assert np.array_equal(first.x_test, second.x_test)
    assert np.bincount(first.y_test).min() >= 25  # the bundle's own order is by writer, not by digit


@pytest.mark.parametrize("validation", [0, 1, 200, 1399])
def test_validation_and_train_never_overlap(validation):
    train, held_out = hold_out(1400, validation)
    assert len(held_out) == validation
    assert sorted([*train, *held_out]) == list(range(1400))


def test_a_larger_validation_set_contains_the_smaller():
    assert set(hold_out(1400, 100)[1]) < set(hold_out(1400, 300)[1])


@pytest.mark.parametrize("validation", [-1, 1400, 5000])
def test_impossible_validation_sizes(validation):
    with pytest.raises(UserError, match=f"data.validation={validation}.*0 ... 1399"):
        hold_out(1400, validation)
