"""How do the methods compare, as far as the runs allow to say?

Runs are compared within a task and scale. Runs of one method whose settings differ in more than the seed are
never pooled: they become *variants*, each named by the settings in which it differs from the others.

How diverged runs count: n is the number of runs that came to a result, finished or diverged, and `outcomes`
says how many of which. Means and intervals are over the finished ones only: a metric from before the divergence
is not what the method ends with, and there is no honest number to put in its place. A group without a finished
run has null means, and the verdict says "diverged 3 of 3".
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pipemare_exp import methods, metrics
from pipemare_exp.analysis import published
from pipemare_exp.analysis.collapse import collapsed
from pipemare_exp.analysis.data_of_runs import differing
from pipemare_exp.analysis.row import RunRow
from pipemare_exp.analysis.statistics import Estimate, mean_with_interval, paired_difference, verdict
from pipemare_exp.data import TASKS
from pipemare_exp.errors import UserError, suggest
from pipemare_exp.experiment.runs.folder import FINAL

CUT = ("pipeline.stages", "pipeline.boundaries", "pipeline.slots", "pipeline.split", "pipeline.recompute")
"""What the cut into stages decides. It changes no weight of a synchronous run."""


def compare(runs: Iterable[RunRow], task: str, interval: str = "t") -> list[dict[str, Any]]:
    """One row per scale, method and variant of a task, in the order of tables (`methods.place`).

    Keys: task, scale, method, variant (where there are several), n, outcomes, collapsed, metric, best_mean, best_ci95,
    last_mean, last_ci95 (half widths), difference {n, mean, ci95} of the last metric from the synchronous
    runs, paired by seed (None for these themselves and without any), verdict, published (a list of {value, source,
    what}, None where nothing was published), subset (of what data, if one), data_differ (names of data that the runs
    and the synchronous ones beside them did not share, if any). Where runs had a final test on data of its
    own: test_mean, test_ci95, and test_difference as difference is.
    """
    groups: dict[tuple[str, str, str], list[RunRow]] = {}
    for run in runs:
        if run.task == task:
            key = json.dumps(run.settings, sort_keys=True)
            groups.setdefault((run.scale, run.method, key), []).append(run)
    ordered = sorted(groups, key=lambda key: (key[0], methods.place(key[1]), key[2]))
    rows = []
    for scale, method, key in ordered:
        rivals = [groups[other] for other in ordered if other[:2] == (scale, method)]
        references = [groups[other] for other in ordered if other[0] == scale and methods.synchronous(other[1])]
        variant = _variant(groups[scale, method, key], rivals)
        rows.append(_row(task, groups[scale, method, key], variant, references, interval))
    return rows


def _row(
    task: str,
    group: Sequence[RunRow],
    variant: str | None,
    references: Sequence[Sequence[RunRow]],
    interval: str,
) -> dict[str, Any]:
    outcomes = Counter(run.outcome for run in group)
    finished = [run for run in group if run.outcome == "finished"]
    best = mean_with_interval([r.best for r in finished if r.best is not None], interval=interval)
    last = mean_with_interval([r.last for r in finished if r.last is not None], interval=interval)
    test = mean_with_interval([r.test_score for r in finished if r.test_score is not None], interval=interval)
    difference, words = _difference(group, references, interval)
    reference = None if group[0].synchronous else _reference(group[0], references)
    data_differ = differing(run for run in (*group, *(reference or ())) if run.ended)
    subset = "; ".join(sorted({f"{key}: {text}" for run in group for key, text in run.notes.items()}))
    return {
        "task": task,
        "scale": group[0].scale,
        "method": group[0].method,
        **({"variant": variant} if variant else {}),
        "n": sum(outcomes[outcome] for outcome in FINAL),
        "outcomes": dict(sorted(outcomes.items())),
        "collapsed": _collapsed(group),
        "metric": next((run.metric for run in group if run.metric), None),
        "best_mean": best.mean,
        "best_ci95": best.half_width,
        "last_mean": last.mean,
        "last_ci95": last.half_width,
        "difference": _as_json(difference),
        **({} if test.mean is None else _tested(test, group, references, interval)),
        "verdict": words,
        "published": published_best(task, group[0].method),
        **({"subset": subset} if subset else {}),
        **({"data_differ": data_differ} if data_differ else {}),
    }


def _collapsed(group: Sequence[RunRow]) -> int | None:
    """How many of the finished runs have collapsed; None where that is known of none."""
    known = [found for run in group if (found := collapsed(run)) is not None]
    return sum(known) if known else None


def _as_json(difference: Estimate | None) -> dict[str, Any] | None:
    if difference is None:
        return None
    return {"n": difference.n, "mean": difference.mean, "ci95": difference.half_width}


def _tested(
    test: Estimate, group: Sequence[RunRow], references: Sequence[Sequence[RunRow]], interval: str
) -> dict[str, Any]:
    """What the final test gave, and its paired difference from the synchronous runs'."""
    reference = None if group[0].synchronous else _reference(group[0], references)
    difference = reference and paired_difference(_by_seed(group, _test), _by_seed(reference, _test), interval=interval)
    known = difference if difference and difference.n else None
    return {"test_mean": test.mean, "test_ci95": test.half_width, "test_difference": _as_json(known)}


def published_best(task: str, method: str) -> list[dict[str, Any]] | None:
    """The published best metrics of a method on a task, each with its source; None where there is none."""
    found = published.best_of(task, method)
    return [
        {
            "value": one["value"],
            "source": published.source(one),
            "what": f"best {one['metric']}, the paper's own model and length" + _note(one),
        }
        for one in found
    ] or None


def _note(entry: Mapping[str, Any]) -> str:
    return f"; {entry['note']}" if entry.get("note") else ""


def _variant(group: Sequence[RunRow], rivals: Sequence[Sequence[RunRow]]) -> str | None:
    """The settings in which a group differs from the other groups of its method: "optimizer.rate=0.1"."""
    every = [other[0].settings for other in rivals]
    if len(every) < 2:
        return None
    keys = sorted(set().union(*every))
    differing = [key for key in keys if len({settings.get(key) for settings in every}) > 1]
    short = [key for key in differing if key != "pipeline.boundaries"]  # long, and mostly told by the number of stages
    told = {tuple(settings.get(key) for key in short) for settings in every}
    keys = short if len(told) == len(every) else differing
    return ", ".join(f"{key}={group[0].settings.get(key, 'unset')}" for key in keys)


def _difference(
    group: Sequence[RunRow], references: Sequence[Sequence[RunRow]], interval: str
) -> tuple[Estimate | None, str]:
    """The paired difference of the last metric from the synchronous runs, and what it allows one to say."""
    ended = [run for run in group if run.ended]
    diverged, gone = sum(run.outcome == "diverged" for run in ended), _collapsed(group)
    if not ended:
        return None, "no result yet"
    counts = {"diverged": diverged, "collapsed": gone}
    tail = "; ".join(f"{word} {count} of {len(ended)}" for word, count in counts.items() if count)
    if diverged == len(ended):
        return None, tail
    if group[0].synchronous:
        return None, "; ".join(filter(None, ["the reference", tail]))
    reference = _reference(group[0], references)
    if reference is None:
        return None, "; ".join(filter(None, [_no_reference(group[0], references), tail]))
    difference = paired_difference(_by_seed(group, _last), _by_seed(reference, _last), interval=interval)
    return difference, "; ".join(filter(None, [verdict(difference, metrics.of(ended[0].metric)), tail]))


def _reference(run: RunRow, references: Sequence[Sequence[RunRow]]) -> Sequence[RunRow] | None:
    """The synchronous runs of the same settings, those of the same cut before others; None where there are none.

    The method's own settings need not agree, nor the cut: a synchronous run has the same weights in any.
    """
    fitting = [group for group in references if not _differing(run, group[0])]
    return min(fitting, key=lambda group: len(_differing(run, group[0], but=())), default=None)


def _differing(run: RunRow, reference: RunRow, but: tuple[str, ...] = CUT) -> list[str]:
    """The settings, but the method's own and those of `but`, that the two do not share."""
    names = sorted({*run.settings, *reference.settings} - set(but))
    return [
        name
        for name in names
        if not name.startswith("method.") and run.settings.get(name) != reference.settings.get(name)
    ]


def _no_reference(run: RunRow, references: Sequence[Sequence[RunRow]]) -> str:
    """Why there is nothing to compare with: the settings in which the nearest synchronous runs differ."""
    if not references:
        return "no synchronous run"
    nearest = min((group[0] for group in references), key=lambda one: len(_differing(run, one)))
    told = [
        f"{name} {nearest.settings.get(name, 'unset')}, here {run.settings.get(name, 'unset')}"
        for name in _differing(run, nearest)
    ]
    return f"no synchronous run with these settings ({'; '.join(told)})"


def _last(run: RunRow) -> float | None:
    return run.last


def _test(run: RunRow) -> float | None:
    return run.test_score


def _by_seed(group: Sequence[RunRow], score: Callable[[RunRow], float | None]) -> dict[int, float]:
    scores = [(run.seed, score(run)) for run in group if run.outcome == "finished"]
    return {seed: value for seed, value in scores if value is not None}


def check_task(task: str) -> None:
    """UserError for a name that no task has."""
    if task not in TASKS:
        raise UserError(f'no task "{task}"; allowed: {", ".join(TASKS)}{suggest(task, TASKS)}')
