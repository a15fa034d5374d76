"""One logged run as a plain row: what it was told, what came out, and what made it.

Only what a run logged is in a row: a value that a run has not logged is None.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipemare_exp import methods, metrics
from pipemare_exp.errors import UserError, printable
from pipemare_exp.experiment.config.flat import flatten
from pipemare_exp.experiment.config.identity import NOT_IDENTITY
from pipemare_exp.experiment.runs.folder import FINAL, Run

DAMAGED = "damaged"
"""The outcome of a run whose folder cannot be read."""
DATA_DIGITS = 16
"""Of a SHA-256, in a row: 64 bits tell any two files apart that nobody made to be confused. meta.json has it whole."""
HEALTH = ("step", "epoch", "loss", "grad_norm", "max_delay")
"""What is known of a training step's health."""
STALENESS = ("staleness", "t2_error", "update", "grad_norm")
"""What a look at the staleness of one step gives for every stage."""
_PATHS = ("runs=", "data.root=", "tracking.uri=", "--runs=")
_SHOWN = (
    *("name", "task", "scale", "method", "seed", "outcome"),
    *("step", "metric", "best", "last", "test_score", "seconds"),
)


@dataclass(frozen=True, kw_only=True)
class RunRow:
    """One run. `value` in `evals`, `best` and `last` are of `metric`, in its unit.

    `health` has what was observed of the last step before each evaluation, with the training loss until it; `staleness`
    has the looks at the weights of every stage, each quantity a list over stages. Both are empty where nothing was
    logged.

    `best` and `last` of a run without a result are those of its evaluations until now. `problem` is the error of a
    failed run, and why a damaged one cannot be read; `data` are the digests of what the run read, {} where none were
    recorded; of a damaged one, only name, outcome and problem mean anything.
    """

    identity: str = ""
    name: str
    task: str = ""
    scale: str = ""
    method: str = ""
    seed: int = 0
    overrides: list[str] = field(default_factory=list)
    outcome: str
    metric: str = ""
    best: float | None = None
    last: float | None = None
    test: dict[str, Any] | None = None
    step: int | None = None
    epoch: int | None = None
    epochs: int | None = None
    seconds: float | None = None
    model: str | None = None
    stages: int | None = None
    microbatches: int | None = None
    slots: str | None = None
    optimizer: str | None = None
    rate: float | None = None
    lr_rescheduling_steps: int | None = None
    decay: float | None = None
    warmup_steps: int | None = None
    segment: int | None = None
    delay_scale: float | None = None
    settings: dict[str, str] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)
    command: str | None = None
    commit: str | None = None
    dirty: bool | None = None
    created: str | None = None
    versions: dict[str, Any] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=dict)
    data: dict[str, str] = field(default_factory=dict)
    evals: list[dict[str, Any]] = field(default_factory=list)
    health: list[dict[str, Any]] = field(default_factory=list)
    staleness: list[dict[str, Any]] = field(default_factory=list)
    problem: str | None = None

    def __post_init__(self) -> None:
        if self.metric or self.ended:
            metrics.of(self.metric)  # refuses what nothing could be said of

    @property
    def ended(self) -> bool:
        """Whether the run came to a result: it finished, or it diverged."""
        return self.outcome in FINAL

    @property
    def synchronous(self) -> bool:
        """Whether every step of this run flushes the pipeline."""
        return methods.synchronous(self.method)

    @property
    def test_score(self) -> float | None:
        """The score of the final test, None where the task has none beside its evaluations."""
        key = metrics.of(self.metric).test if self.metric else None
        return _finite(self.test.get(key)) if self.test and key else None

    @property
    def finite_evals(self) -> list[dict[str, Any]]:
        """The evaluations whose value is a finite number."""
        return [one for one in self.evals if _finite(one["value"]) is not None]

    def as_json(self) -> dict[str, Any]:
        """The keys of `pipemare runs --json`; `problem` only where there is one."""
        known = ("name", "outcome") if self.outcome == DAMAGED else _SHOWN
        shown = {key.removesuffix("_score"): getattr(self, key) if key in known else None for key in _SHOWN}
        shown["metric"] = shown["metric"] or None
        return shown | ({"problem": self.problem} if self.problem else {})


def from_run(run: Run) -> RunRow:
    """The row of a run folder; a torn or missing file makes it a damaged one, never an exception."""
    try:
        return _read(run)
    except Exception as error:  # what a crash or a hand may have left in the files is without limit
        text = next(iter(str(error).strip().splitlines()), "")
        kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
        return RunRow(name=run.name, outcome=DAMAGED, problem=printable(f"{kind}{text}"))


def _read(run: Run) -> RunRow:
    config, outcome, meta, status = run.config, run.outcome, run.meta, run.status
    if "task" not in config or "method" not in config:
        raise UserError("config.yaml holds no whole configuration")
    if outcome in FINAL and not run.result:
        raise UserError(f"status.json says {outcome}, but result.json is missing")
    result = run.result or {}
    metric = result.get("metric") or meta.get("metric") or ""
    rows = run.metrics()
    evals = [
        {
            "step": row["step"],
            "epoch": row["epoch"],
            "split": row.get("split"),
            "loss": row.get("loss"),
            "value": row.get(metric),
            "seconds": row.get("seconds"),
        }
        for row in rows
        if row["kind"] == "eval"
    ]
    result = result or _so_far(metric, evals)
    return RunRow(
        identity=result.get("config_hash") or run.name.rsplit("-", 1)[-1],
        name=run.name,
        task=config["task"]["name"],
        scale=config["scale"],
        method=config["method"]["label"],
        seed=config["seed"],
        overrides=[one for one in run.overrides if not one.startswith(_PATHS)],
        outcome=outcome,
        metric=metric,
        best=_finite(result.get("best")),
        last=_finite(result.get("last")),
        test=result.get("test"),
        step=result.get("step", status.get("step")),
        epoch=result.get("epoch"),
        epochs=config.get("epochs"),
        seconds=_finite(result.get("seconds")),
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
        settings=settings_of(config),
        notes=dict(meta.get("notes") or {}),
        command=_without_paths(meta.get("command")),
        commit=meta.get("commit"),
        dirty=meta.get("dirty"),
        created=meta.get("created"),
        versions=dict(meta.get("versions") or {}),
        machine=dict(meta.get("machine") or {}),
        data=data_of(meta),
        evals=evals,
        health=_health(rows, {one["step"] for one in evals}),
        staleness=[
            {"step": row["step"], "epoch": row["epoch"], **{name: row[name] for name in STALENESS}}
            for row in rows
            if row["kind"] == "staleness"
        ],
        problem=status.get("error") if outcome == "failed" else None,
    )


def _health(rows: Sequence[Mapping[str, Any]], steps: set[int]) -> list[dict[str, Any]]:
    """The training rows at `steps`, those of evaluations, and the last one."""
    trained = [row for row in rows if row["kind"] == "train"]
    return [{name: row.get(name) for name in HEALTH} for row in trained if row["step"] in steps or row is trained[-1]]


def settings_of(config: Mapping[str, Any]) -> dict[str, str]:
    """The flattened settings that tell two variants apart: those of the run's identity but the seed."""
    neutral = {"seed", *NOT_IDENTITY}
    prefixes = tuple(f"{name}." for name in neutral)
    flat = flatten(config)
    return {k: text for k, text in flat.items() if text != "null" and k not in neutral and not k.startswith(prefixes)}


def data_of(meta: Mapping[str, Any]) -> dict[str, str]:
    """The digest of each of a run's data by name; `x, then y` where a later session was told to take other data."""
    found = {name: _short(one) for name, one in (meta.get("data") or {}).items()}
    for session in meta.get("sessions", []):
        for name, one in (session.get("other_data") or {}).items():
            found[name] = f"{found.get(name, 'none')}, then {_short(one)}"
    return found


def _short(one: Any) -> str:
    return str(one.get("sha256"))[:DATA_DIGITS] if isinstance(one, Mapping) else "none"


def _so_far(metric: str, evals: list[dict[str, Any]]) -> dict[str, Any]:
    """What a result would say of the evaluations that a run without one has had until now."""
    values = [one["value"] for one in evals if _finite(one["value"]) is not None]
    if not values:
        return {}
    return {"best": metrics.of(metric).best(values), "last": values[-1], "seconds": evals[-1]["seconds"]}


def _finite(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


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
