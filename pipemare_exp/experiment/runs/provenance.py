"""What made a run: the commit, the versions of the packages, the machine."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib import metadata
from typing import Any

from pipemare_exp.environment import COMMIT
from pipemare_exp.paths import project_root

PACKAGES = (
    "pipemare-exp", "torch", "torchvision", "numpy", "scikit-learn", "hydra-core", "omegaconf", "mlflow",
    "ve-fairseq", "sacrebleu", "sacremoses", "subword-nmt",
)  # fmt: skip


def versions() -> dict[str, str]:
    """Python's version and those of the packages that matter, without importing any of them."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, Any]:
    """Operating system, processor, cores, and the GPU's name where torch is in use and has one."""
    torch = sys.modules.get("torch")
    gpu = torch.cuda.get_device_name() if torch is not None and torch.cuda.is_available() else None
    return {"system": platform.platform(), "processor": _processor(), "cores": os.cpu_count(), "gpu": gpu}


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    except OSError:  # not Linux
        names = []
    return names[0] if names else platform.machine()


def commit() -> tuple[str | None, bool | None]:
    """The checkout's commit and whether files differ from it.

    Outside of a git checkout (a copy without its history): what PIPEMARE_COMMIT says, and None for the files.
    """
    head = _git("rev-parse", "HEAD")
    if not head:
        return os.environ.get(COMMIT) or None, None
    return head, bool(_git("status", "--porcelain", "--untracked-files=no"))


def _git(*arguments: str) -> str | None:
    root = project_root()
    if not (root / ".git").exists():
        return None
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
