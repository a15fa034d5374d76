"""One logged run as a plain row: what it was told, what came out, and what made it.

Only what a run logged is in a row: a value that a run has not logged is None.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipemare_exp import methods
from pipemare_exp.analysis.records import ENDED, settings_of, test_score

_PATHS = ("runs=", "data.root=", "tracking.uri=", "--runs=")


@dataclass(frozen=True)
class RunRow:
    """One run: who it is, what it was told, what came out, and what made it."""

    identity: str
    name: str
    task: str
    scale: str
    method: str
    seed: int
    overrides: list[str]
    outcome: str
    metric: str
    best: float | None
    last: float | None
    test: dict[str, Any] | None
    step: int | None
    epoch: int | None
    epochs: int | None
    seconds: float | None
    model: str | None
    stages: int | None
    microbatches: int | None
    slots: str | None
    optimizer: str | None
    rate: float | None
    lr_rescheduling_steps: int | None
    decay: float | None
    warmup_steps: int | None
    segment: int | None
    delay_scale: float | None
    settings: dict[str, str]
    notes: dict[str, Any]
    command: str | None
    commit: str | None
    dirty: bool | None
    created: str | None
    versions: dict[str, Any]
    machine: dict[str, Any]
    evals: list[dict[str, Any]] = field(default_factory=list)

    @property
    def ended(self) -> bool:
        """Whether the run came to a result: it finished, or it diverged."""
        return self.outcome in ENDED

    @property
    def test_score(self) -> float | None:
        """Percent of the final test, None where the task has none beside its evaluations."""
        return test_score(self.test)

    @property
    def synchronous(self) -> bool:
        """Whether every step of this run flushes the pipeline."""
        return methods.synchronous(self.method)

    def curve(self) -> tuple[list[int], list[float]]:
        """(finished epochs, metric in percent) of the evaluations, without those that are not finite."""
        points = [(row["epoch"], row["value"]) for row in self.evals if _finite(row["value"])]
        return [epoch for epoch, _ in points], [value for _, value in points]


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and abs(value) < float("inf")


def _dig(tree: Any, *keys: str) -> Any:
    """The value at a path of nested mappings, None where the path ends early."""
    for one in keys:
        if not isinstance(tree, Mapping):
            return None
        tree = tree.get(one)
    return tree


def _stages(config: Mapping[str, Any]) -> int | None:
    """P: the stages of the cut, times the parts that each was split into."""
    stages = _dig(config, "pipeline", "stages")
    return None if stages is None else stages * (_dig(config, "pipeline", "split") or 1)


def _part(config: Mapping[str, Any], part: str, number: str) -> Any:
    """A number of one of the method's techniques, None where that technique is off."""
    return _dig(config, "method", part, number) if _dig(config, "method", part, "enabled") else None


def from_run(run: Any) -> RunRow:
    """The row of one `pipemare_exp.experiment.runs.folder.Run`."""
    config, meta = run.config, run.meta or {}
    result = run.result or {}
    metric = result.get("metric") or meta.get("metric") or _metric_of(run)
    evals = [
        {
            "step": row["step"],
            "epoch": row["epoch"],
            "split": row.get("split"),
            "loss": row.get("loss"),
            "value": row.get(metric),
            "seconds": row.get("seconds"),
        }
        for row in run.metrics("eval")
    ]
    settings = {key: text for key, text in settings_of(config).items() if key != "seed"}
    return RunRow(
        identity=result.get("config_hash") or Path(run.path).name.rsplit("-", 1)[-1],
        name=Path(run.path).name,
        task=_dig(config, "task", "name"),
        scale=config["scale"],
        method=_dig(config, "method", "label"),
        seed=config["seed"],
        overrides=[one for one in run.overrides if not one.startswith(_PATHS)],
        outcome=run.outcome,
        metric=metric,
        best=result.get("best"),
        last=result.get("last"),
        test=result.get("test"),
        step=result.get("step"),
        epoch=result.get("epoch"),
        epochs=config.get("epochs"),
        seconds=result.get("seconds"),
        model=_dig(config, "model", "name"),
        stages=_stages(config),
        microbatches=_dig(config, "pipeline", "microbatches"),
        slots=_dig(config, "pipeline", "slots"),
        optimizer=_dig(config, "optimizer", "name"),
        rate=_dig(config, "optimizer", "rate"),
        lr_rescheduling_steps=_part(config, "lr_rescheduling", "steps"),
        decay=_part(config, "discrepancy_correction", "decay"),
        warmup_steps=_part(config, "sync_warmup", "steps"),
        segment=_dig(config, "pipeline", "recompute"),
        delay_scale=_dig(config, "method", "delay_scale"),
        settings=settings,
        notes=dict(meta.get("notes") or {}),
        command=_without_paths(meta.get("command")),
        commit=meta.get("commit"),
        dirty=meta.get("dirty"),
        created=meta.get("created"),
        versions=dict(meta.get("versions") or {}),
        machine=dict(meta.get("machine") or {}),
        evals=evals,
    )


def _metric_of(run: Any) -> str:
    """The metric of a run without a result: the one of its evaluations, else that of its kind of task."""
    for row in run.metrics("eval"):
        for name in ("accuracy", "bleu"):
            if name in row:
                return name
    return "accuracy" if _dig(run.config, "task", "name") in ("digits", "cifar10") else "bleu"


def _without_paths(command: str | None) -> str | None:
    """The command less the places on one machine, which no reader of the rows has."""
    if command is None:
        return None
    words = command.split()
    kept = [
        word
        for before, word in zip(["", *words], words, strict=False)
        if not word.startswith(_PATHS) and word != "--runs" and before != "--runs"
    ]
    return " ".join(kept)


def as_rows(runs: Iterable[Any]) -> list[RunRow]:
    """Rows of `runs`, which may be rows already."""
    return [run if isinstance(run, RunRow) else from_run(run) for run in runs]
