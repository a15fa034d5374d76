"""Where is the package, and where are the folders that travel with it? The only place that looks at its own path."""

from __future__ import annotations

from pathlib import Path

from pipemare_exp.errors import UserError

PACKAGE = Path(__file__).resolve().parent
BESIDE = PACKAGE.parent
"""What must be on Python's path for this package to be the one that is imported."""


def project_root() -> Path:
    """The checkout that this package lies in; the current folder when it was installed from a wheel."""
    return BESIDE if (BESIDE / "configs" / "config.yaml").is_file() else Path.cwd()


def travelling(name: str) -> Path:
    """The folder `name` (configs, sweeps) beside the package in a checkout, or its copy inside an installed wheel.

    Raises UserError where neither is there.
    """
    for folder in (BESIDE / name, PACKAGE / f"_{name}"):
        if folder.is_dir():
            return folder
    raise UserError(f"no {name} folder beside {PACKAGE} nor in it; install the package again")
