"""Is a small file of a run what was written there? Its contents, checked, or the reason why it cannot be used.

A run folder outlives power cuts, full disks and people. What is read from it is therefore never taken to be whole: a
file that is not there reads as None, and one that cannot be what was written raises `Damaged`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipemare_exp.disk import open_regular
from pipemare_exp.errors import UserError
from pipemare_exp.experiment.config import yaml_text

Check = Callable[[Any], str | None]
"""From a file's contents to the reason why they are not what was written, None where they are."""


class Damaged(UserError):
    """The file `path` is there and cannot be what was written, for `reason`."""

    def __init__(self, path: Path, reason: str, remedy: str = "move it away; the same command writes it anew") -> None:
        super().__init__(f"{path} is damaged: {reason}; {remedy}")
        self.path, self.reason = path, reason


def read_text(path: Path) -> str | None:
    """The text of `path`, None where it is not there. Raises Damaged for an empty one or one that is not UTF-8."""
    try:
        with open_regular(path) as file:
            text = file.read().decode("utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except UnicodeDecodeError as error:
        raise Damaged(path, f"not UTF-8 at byte {error.start}") from error
    except OSError as error:
        raise Damaged(path, error.strerror or str(error)) from error
    if not text.strip("\0 \t\r\n"):
        raise Damaged(path, "it is empty")
    return text


def read_json(path: Path, check: Check) -> Any:
    """The value of a JSON file, None where there is none. Raises Damaged where `check` finds a reason."""
    return _parsed(path, json.loads, "JSON", check)


def read_yaml(path: Path, check: Check) -> Any:
    """The value of a YAML file, None where there is none. Raises Damaged where `check` finds a reason."""
    return _parsed(path, yaml_text.loads, "YAML", check)


def _parsed(path: Path, parse: Callable[[str], Any], language: str, check: Check) -> Any:
    text = read_text(path)
    if text is None:
        return None
    try:
        value = parse(text)
    except RecursionError as error:
        raise Damaged(path, f"not {language} that we wrote (nested too deeply)") from error
    except Exception as error:  # a parser's own errors, and what it makes of a date or a number that cannot be
        where = " ".join(str(error).split())
        raise Damaged(path, f"not {language} ({where[:120]})") from error
    reason = check(value)
    if reason is not None:
        raise Damaged(path, reason)
    return value


def check_object(value: Any) -> str | None:
    """Whether a file holds an object with names."""
    return None if isinstance(value, dict) and all(isinstance(key, str) for key in value) else "it holds no object"


def check_texts(value: Any) -> str | None:
    """Whether overrides.json holds what a command line said."""
    texts = isinstance(value, list) and all(isinstance(one, str) for one in value)
    return None if texts else "it holds no list of texts"


def check_meta(value: Any) -> str | None:
    reason = check_object(value)
    if reason is None and not _objects(value.get("sessions", [])):
        reason = "its sessions are no list of objects"
    data = value.get("data", {}) if reason is None else {}
    if check_object(data) or not _objects(list(data.values())):
        reason = "its data are no object of objects"
    return reason


def check_status(value: Any) -> str | None:
    reason = check_object(value)
    if reason is None and value.get("state") not in ("running", "finished", "diverged", "interrupted", "failed"):
        reason = f"its state is {value.get('state')!r}"
    return reason


def check_result(value: Any) -> str | None:
    reason = check_object(value)
    if reason is None and value.get("outcome") not in ("finished", "diverged"):
        reason = f"its outcome is {value.get('outcome')!r}"
    if reason is None:
        absent = [key for key in ("step", "metric", "best", "last", "seconds") if key not in value]
        reason = f"it has no {absent[0]}" if absent else _check_mark(value.get("rows"))
    return reason


def _check_mark(value: Any) -> str | None:
    """Whether `rows` of result.json is what `rows.mark` gives; a run of another program may have none."""
    fits = value is None or (isinstance(value, dict) and type(value.get("rows")) is int and "sha256" in value)
    return None if fits else "its rows are no number of rows with a digest"


def _objects(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, dict) for one in value)
