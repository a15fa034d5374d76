"""A tiny training on digits that tests start, kill and compare: 12 stages, dropout, checkpoints every three steps."""

from __future__ import annotations

import io
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from pipemare_exp.experiment.config.load import load
from pipemare_exp.experiment.runs.folder import Run
from pipemare_exp.experiment.training import assemble
from pipemare_exp.experiment.training.session import Result, train

# A narrow network in 12 stages: the first one's delay is 23/4 steps, so that the pipeline fills during steps 1 to 6.
TINY = [
    "tracking=none",
    "progress=none",
    "model.width=2",
    "data.augment=true",
    "pipeline.stages=12",
    "pipeline.microbatches=4",
    "log_every=4",
    "checkpoint.every_steps=3",
]


class DroppingLinear(nn.Linear):
    """A linear layer with dropout before it, called twice, whose weights keep the names of a plain one."""

    def __init__(self, plain: nn.Linear):
        super().__init__(plain.in_features, plain.out_features)
        self.load_state_dict(plain.state_dict())
        self.dropout = nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(self.dropout(x) + self.dropout(x), self.weight, self.bias)


def prepared(overrides: list[str]) -> assemble.Prepared:
    made = assemble.prepare(load(overrides))
    made.model.fc = DroppingLinear(made.model.fc)  # type: ignore[assignment, arg-type]
    return made


def run_once(overrides: list[str], runs: Path) -> tuple[Result, str]:
    out = io.StringIO()
    made = prepared(overrides)
    return train(made.cfg, overrides, runs=runs, out=out, prepared=made), out.getvalue()


def assert_same(left: object, right: object, where: str = "") -> None:
    if isinstance(left, Tensor):
        assert isinstance(right, Tensor) and torch.equal(left, right), where
    elif isinstance(left, dict):
        assert isinstance(right, dict) and left.keys() == right.keys(), where
        for key in left:
            if key not in ("seconds", "sha256"):  # of rows, which have seconds in them
                assert_same(left[key], right[key], f"{where}.{key}")
    elif isinstance(left, list | tuple):
        assert isinstance(right, list | tuple) and len(left) == len(right), where
        for index, (a, b) in enumerate(zip(left, right, strict=True)):
            assert_same(a, b, f"{where}[{index}]")
    else:
        assert left == right, where


def last_state(run: Run) -> dict:
    return torch.load(run.checkpoints / "last.pt", weights_only=True)


def assert_same_run(left: Run, right: Run) -> None:
    assert_same(last_state(left), last_state(right), left.name)
    assert_same(left.metrics(), right.metrics(), "metrics")
    results = [dict(run.result or {}) for run in (left, right)]
    for result in results:
        del result["seconds"], result["resumed_from"], result["rows"]
    assert results[0] == results[1]
