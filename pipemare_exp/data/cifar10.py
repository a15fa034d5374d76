"""CIFAR-10 as one prepared file, `cifar10.npz`: made from torchvision's checked download, read with every
check.

A. Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009: 60,000 colour images of 32x32
in 10 classes, 50,000 of them for training.
"""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

import numpy as np

from pipemare_exp.data.cache import atomic_write, make_folder
from pipemare_exp.data.images import Augmentation, ImageArrays, Images
from pipemare_exp.environment import DATA
from pipemare_exp.errors import UserError
from pipemare_exp.leftovers import work_folder

FILE = "cifar10.npz"
ARCHIVE = "cifar-10-python.tar.gz"
TRAIN, TEST, CLASSES = 50_000, 10_000, 10
ELSEWHERE = f"--data DIR, data.root=DIR or {DATA} name another folder"


def load(root: Path) -> ImageArrays:
    """The arrays of `root`/cifar10.npz; UserError with the remedy if it is missing or damaged.

    Fewer images than CIFAR-10 has are accepted (a subset is a subset; the task says so in its notes); other
    shapes, types or labels are not.
    """
    path = root / FILE
    if not path.is_file():
        raise UserError(
            f'no prepared CIFAR-10 at {path}; run "pipemare data prepare cifar10 --data {root}" '
            f"(downloads 170 MB), or put there an .npz of uint8 x_train ({TRAIN}, 32, 32, 3), "
            f"y_train ({TRAIN},), x_test ({TEST}, 32, 32, 3), y_test ({TEST},); {ELSEWHERE}"
        )
    try:
        file = np.load(path, allow_pickle=False)
        if not isinstance(file, np.lib.npyio.NpzFile):
            raise ValueError("one array, not an .npz archive of several")
        with file:
            arrays = {name: file[name] for name in file.files if isinstance(file[name], np.ndarray)}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError) as error:
        raise _damaged(path, f"cannot be read ({type(error).__name__}: {error})") from error
    for part in ("train", "test"):
        _check(path, arrays, part)
    return ImageArrays(
        arrays["x_train"],
        arrays["y_train"].astype(np.int64),
        arrays["x_test"],
        arrays["y_test"].astype(np.int64),
    )


def _check(path: Path, arrays: dict[str, np.ndarray], part: str) -> None:
    """Raise UserError unless x_<part> and y_<part> are images and labels that belong together."""
    names = (f"x_{part}", f"y_{part}")
    for name in names:
        if name not in arrays:
            raise _damaged(path, f"has no array {name} (it has: {', '.join(arrays) or 'none'})")
    x, y = (arrays[name] for name in names)
    if x.dtype != np.uint8 or x.ndim != 4 or x.shape[1:] != (32, 32, 3) or not len(x):
        raise _damaged(path, f"holds {names[0]} as {x.dtype} {x.shape} instead of uint8 (n, 32, 32, 3)")
    if not np.issubdtype(y.dtype, np.integer) or y.shape != (len(x),):
        raise _damaged(path, f"holds {names[1]} as {y.dtype} {y.shape} instead of integers ({len(x)},)")
    if y.min() < 0 or y.max() >= CLASSES:
        raise _damaged(path, f"holds labels from {y.min()} to {y.max()} in {names[1]} instead of 0 ... {CLASSES - 1}")


def _damaged(path: Path, what: str) -> UserError:
    return UserError(
        f'{path} {what}; delete it and run "pipemare data prepare cifar10 --data {path.parent}", '
        f"or put a whole one there; {ELSEWHERE}"
    )


def prepare(root: Path, download: bool = True) -> str:
    """Make `root`/cifar10.npz, from `root`/cifar-10-python.tar.gz if that is there, else from the network.

    torchvision checks the MD5 of the archive and of every batch in it. The work is done in a temporary
    folder under `root`, which is removed again; the file appears whole or not at all. A good file that
    exists is left alone.
    """
    path = root / FILE
    if path.is_file():
        present = load(root)
        return f"{path} is there already: {len(present.x_train):,} train and {len(present.x_test):,} test images"
    from torchvision.datasets import CIFAR10
    from torchvision.datasets.utils import check_integrity

    make_folder(root)
    archive = root / ARCHIVE
    if archive.is_file() and not check_integrity(str(archive), CIFAR10.tgz_md5):
        raise UserError(f"{archive} is damaged (its MD5 is not {CIFAR10.tgz_md5}); delete it, or put a whole one there")
    if not archive.is_file() and not download:
        raise UserError(f"no {archive} to prepare CIFAR-10 from, and downloading is off; put it there")
    try:
        with work_folder(root, ".cifar10-") as folder:
            if archive.is_file():
                (folder / ARCHIVE).symlink_to(archive.resolve())
            train, test = (CIFAR10(folder, train=part, download=True) for part in (True, False))
            arrays = {
                "x_train": np.ascontiguousarray(train.data),
                "y_train": np.array(train.targets, dtype=np.uint8),
                "x_test": np.ascontiguousarray(test.data),
                "y_test": np.array(test.targets, dtype=np.uint8),
            }
    except (OSError, RuntimeError) as error:  # no network (URLError is an OSError), or a wrong checksum
        raise UserError(
            f"could not get CIFAR-10 from {CIFAR10.url} ({error}); put {ARCHIVE} (from another machine) "
            f"or {FILE} into {root} and run this again; {ELSEWHERE}"
        ) from error
    with atomic_write(path) as file:
        np.savez(file, allow_pickle=False, **arrays)
    return f"wrote {path}: {len(arrays['x_train']):,} train and {len(arrays['x_test']):,} test images"


def describe() -> Images:
    """What `pipemare data list` says of CIFAR-10."""
    return Images(
        "cifar10",
        "CIFAR-10, 50,000 train / 10,000 test colour images of 32x32 in 10 classes",
        (FILE,),
        prepare,
        load=load,
        classes=10,
        augmentation=Augmentation(4, flip=True),
        published=(TRAIN, TEST),
    )
