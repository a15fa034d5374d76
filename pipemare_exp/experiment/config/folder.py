"""Where the configuration files are and which choices they offer, found without Hydra."""

from __future__ import annotations

from pathlib import Path

from pipemare_exp.experiment.config import yaml_text
from pipemare_exp.paths import travelling


def config_folder() -> Path:
    """configs/ beside the package in a checkout, or the copy inside an installed wheel."""
    return travelling("configs")


def groups() -> list[str]:
    """The names of the configuration groups (`method`, `task`, ...); `experiment` is there for files of the user."""
    return sorted({"experiment", *(path.name for path in config_folder().iterdir() if path.is_dir())})


def options(group: str) -> list[str]:
    """The choices of a group: `gpipe`, `t1` and so on for `method`."""
    folder = config_folder() / group
    return sorted(path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.yaml"))


def scales(task: str) -> list[str]:
    """The scales that have a recipe for `task`."""
    return [name.removeprefix(f"{task}_") for name in options("recipe") if name.startswith(f"{task}_")]


def first_scale(task: str) -> str:
    """The scale that a run of `task` has where none is asked for: the one that configs/task/TASK.yaml overrides."""
    text = (config_folder() / "task" / f"{task}.yaml").read_text(encoding="utf-8")
    chosen: dict[str, str] = {key: value for entry in yaml_text.loads(text)["defaults"] for key, value in entry.items()}
    return chosen["override /scale"]
