"""No number that a user can give is without an upper bound, and none that is refused has begun any work."""

from __future__ import annotations

import argparse
import dataclasses
import typing
from collections.abc import Iterator
from importlib import import_module

import pytest

from pipemare_exp import cli, methods
from pipemare_exp.errors import UserError
from pipemare_exp.experiment.config.load import load
from pipemare_exp.experiment.config.schema import Config, method_config
from pipemare_exp.settings import LARGEST

HUGE = "99999999999999999999"
REFUSED = {
    "plan --stages 99999999999": "from 1 to 10000",
    "plan --stages 0": "--stages: 0: it must be a whole number from 1 to 10000",
    "plan --stages 4 --microbatches -1": "from 1 to",
    "plan --stages 8 --steps 0": "from 1 to",
    "plan --stages 1000 --microbatches 1000 --steps 1000": "P x N x T may be at most 1000000",
    f"sweep --dry-run ablation_digits seeds={HUGE}": "from 1 to 10000",
    f"sweep --dry-run ablation_digits seeds=[{HUGE}]": f"from 0 to {LARGEST}",
    f"sweep ablation_digits jobs={HUGE}": "from 1 to 10000",
    "sweep ablation_digits jobs=1e3": "whole number",
    f"demo --seeds {HUGE}": "from 1 to 10000",
    "gpu bench --device cpu --steps 0": "from 1 to",
    "gpu bench --device cpu --size 0": "from 1 to",
    "gpu bench --device cpu --epoch-steps -1": "from 1 to",
    "gpu bench --device cpu --model nope": "known are resnet",
    "gpu bench --device nope": "invalid choice",
    "gpu train cell.json --minutes nan": "a number above 0",
    "bench runtime --model nope": 'unknown model "nope"',
    "bench runtime --model transformer": "takes no images",
    "bench runtime --seconds nan": "a number above 0",
    "bench emulator --model nope": "benchmarks know resnet20",
    "bench emulator --batch 0": "from 1 to",
    "train --cfg task=digits pipeline.split=99999999999999999999": "pipeline.split=99999999999999999999",
    "train --cfg task=digits seed=99999999999": f"no number may be beyond {LARGEST}",
    "train --cfg task=digits optimizer.rate=1e300": f"no number may be beyond {LARGEST}",
}  # fmt: skip


@pytest.mark.parametrize("line", REFUSED)
def test_a_number_or_a_name_out_of_range_is_refused_at_once(line: str, capsys: pytest.CaptureFixture) -> None:
    assert cli.main(line.split()) == 2
    assert REFUSED[line] in capsys.readouterr().err


def _options(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from _options(inner)
        else:
            yield action


def test_no_option_takes_a_number_without_an_upper_bound() -> None:
    numbers = 0
    for name in cli.available():
        parser = argparse.ArgumentParser()
        import_module(f"pipemare_exp.commands.{name}").add_arguments(parser)
        for action in _options(parser):
            assert action.type not in (int, float), f"{name} {action.option_strings}"
            if callable(action.type) and action.type.__module__ == "pipemare_exp.arguments":
                numbers += 1
                with pytest.raises(argparse.ArgumentTypeError):
                    action.type(HUGE)
    assert numbers > 20


def _numbers(kind: type, prefix: str = "") -> Iterator[str]:
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        if dataclasses.is_dataclass(hint):
            yield from _numbers(hint, f"{prefix}{field.name}.")  # type: ignore[arg-type]
        elif {int, float} & {hint, *typing.get_args(hint)}:
            yield prefix + field.name


@pytest.mark.parametrize("name", [*_numbers(Config)])
def test_no_setting_takes_a_number_without_an_upper_bound(name: str) -> None:
    with pytest.raises(UserError, match="beyond|at most|below"):
        load(["task=digits", f"{name}={HUGE}"])


def test_nor_does_an_option_of_a_method() -> None:
    for method in methods.METHODS:
        for name in _numbers(method_config(method), "method."):
            with pytest.raises(UserError, match="beyond|at most|below|has no|takes no"):
                load(["task=digits", f"method.name={method}", f"{name}={HUGE}"])
