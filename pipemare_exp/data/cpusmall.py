"""Data for the linear regression: LIBSVM's cpusmall where downloaded, else scikit-learn's diabetes.

Both come as standardised features (mean 0, variance 1) and a centred target, so that no offset is needed.
"""

from __future__ import annotations

import hashlib
import os
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipemare_exp.data.description import Description
from pipemare_exp.errors import UserError

CPUSMALL_URL = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/regression/cpusmall"
CPUSMALL_FILE = "cpusmall"
CPUSMALL_FEATURES = 12
CPUSMALL_ROWS = 8192


@dataclass(frozen=True)
class RegressionData:
    """`features` [rows, columns] and `target` [rows], float64, standardised; `name`: where they are from."""

    name: str
    features: np.ndarray
    target: np.ndarray

    def hessian(self) -> np.ndarray:
        """Second derivative of f(w) = |X w - y|^2 / (2 rows): X^T X / rows."""
        return self.features.T @ self.features / len(self.features)

    def largest_curvature(self) -> float:
        """lambda: the largest eigenvalue of the Hessian."""
        return float(np.linalg.eigvalsh(self.hessian())[-1])


def prepare_cpusmall(root: Path, url: str = CPUSMALL_URL) -> Path:
    """Downloads cpusmall into `root` and records its SHA-256 beside it; an existing file is only checked.

    LIBSVM publishes no checksum: the one of the first download is kept (`cpusmall.sha256`), and a file that
    no longer has it is refused. Raises `UserError` where the download fails, with the place to put the
    file.
    """
    path = Path(root) / CPUSMALL_FILE
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(path.name + ".part")
        try:
            with urllib.request.urlopen(url, timeout=60) as answer:
                partial.write_bytes(answer.read())
        except (urllib.error.URLError, OSError) as problem:
            raise UserError(
                f"{url} could not be had ({problem}); download it elsewhere and put it at {path}"
            ) from problem
        read_libsvm(partial)
        os.replace(partial, path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    record = path.with_name(path.name + ".sha256")
    if not record.is_file():
        record.write_text(f"{digest}  {CPUSMALL_FILE}\n", encoding="utf-8")
    elif record.read_text(encoding="utf-8").split()[0] != digest:
        raise UserError(
            f"{path} has changed since its first use (SHA-256 {digest}, recorded in {record}); "
            f"remove both to take it anew"
        )
    return path


def read_libsvm(path: Path, columns: int = CPUSMALL_FEATURES) -> tuple[np.ndarray, np.ndarray]:
    """Features [rows, columns] and target [rows] of lines `target index:value ...`, indices from 1."""
    targets, rows = [], []
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        target, *cells = line.split()
        row = np.zeros(columns)
        try:
            for cell in cells:
                index, value = cell.split(":")
                if int(index) < 1:
                    raise IndexError(f"index {index}")
                row[int(index) - 1] = float(value)
            targets.append(float(target))
        except (ValueError, IndexError) as problem:
            raise UserError(
                f"{path}, line {number}: not LIBSVM's `target index:value ...` with indices 1 to {columns} "
                f"({problem}); remove the file and download it again"
            ) from problem
        rows.append(row)
    if len(rows) < 2:
        raise UserError(f"{path} holds {len(rows)} rows; remove it and download it again")
    return np.array(rows), np.array(targets)


def standardised(name: str, features: np.ndarray, target: np.ndarray) -> RegressionData:
    """Features of mean 0 and variance 1 (constant columns dropped), target of mean 0 and variance 1."""
    features, target = np.asarray(features, np.float64), np.asarray(target, np.float64)
    spread = features.std(axis=0)
    features = (features[:, spread > 0] - features[:, spread > 0].mean(axis=0)) / spread[spread > 0]
    return RegressionData(name, features, (target - target.mean()) / target.std())


def load(root: Path | None = None) -> RegressionData:
    """cpusmall where `root` holds its file (checked against its recorded checksum), else diabetes."""
    if root is not None and (Path(root) / CPUSMALL_FILE).is_file():
        path = prepare_cpusmall(Path(root))
        return standardised("cpusmall", *read_libsvm(path))
    from sklearn.datasets import load_diabetes

    return standardised("diabetes", *load_diabetes(return_X_y=True))


def describe() -> Description:
    """For `pipemare data`."""

    def prepare(root: Path) -> str:
        path = prepare_cpusmall(root)
        return f"{path}: {CPUSMALL_ROWS:,} rows are expected, {len(read_libsvm(path)[1]):,} were read"

    return Description(
        "cpusmall",
        "LIBSVM's cpusmall, for the heat map of the theory; without it, scikit-learn's bundled diabetes data serve",
        (CPUSMALL_FILE,),
        prepare,
    )
