"""Are the committed tables and figures what the committed rows give? Each is made anew and compared, byte for byte."""

from __future__ import annotations

from pathlib import Path
from statistics import mean, stdev

import pytest
from scipy import stats

from paper_figures import registry
from paper_figures.runs import select
from pipemare_exp.analysis import rows
from pipemare_exp.analysis.row import RunRow

RESULTS = Path(__file__).parents[2] / "results"
# Pictures depend on the version of matplotlib; the numbers that are drawn, and tables, do not.
TEXTS = (".csv", ".md", ".tex")
# Of the search for rates only rows are kept: it has runs of many settings, and no figure of its own.
FOLDERS = {name: rows.read(RESULTS / name) for name in ("demo", "laptop")}


def _ready() -> list[tuple[str, str, str]]:
    """Folder, figure and scale of all that the rows suffice for."""
    return [
        (folder, entry.name, scale)
        for folder, runs in FOLDERS.items()
        for entry in registry.ENTRIES
        if entry.kind == "runs"
        for scale in entry.scales(runs)
    ]


@pytest.mark.parametrize("folder", sorted(path.parent.name for path in RESULTS.glob("*/runs.csv")))
def test_rows_are_of_clean_commits(folder: str):
    """A row can be made again from its command and commit."""
    runs = rows.read(RESULTS / folder)
    assert runs
    for run in runs:
        assert run.command.startswith("pipemare train "), run.name
        assert run.commit and run.dirty is False, run.name


@pytest.mark.parametrize(("folder", "name", "scale"), _ready())
def test_a_figure_is_what_the_rows_give(folder: str, name: str, scale: str, tmp_path: Path):
    (entry,) = registry.find([name])
    made = entry.make(tmp_path, FOLDERS[folder], scale)
    for path in made:
        committed = RESULTS / folder / path.name
        assert committed.is_file(), f"make it: pipemare figures --runs results/{folder} --out results/{folder} {name}"
        if path.suffix in TEXTS:
            assert path.read_bytes() == committed.read_bytes()


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_figure_is_left_from_other_rows(folder: str):
    drawn = {f"{name}_{scale}" for where, name, scale in _ready() if where == folder}
    kept = {path.stem for path in (RESULTS / folder).iterdir()} - {"runs", "metrics"}
    assert kept == drawn


def _cell(runs: list[RunRow]) -> str:
    """Mean and interval of test score, or last accuracy, as the main table prints them; single values of few seeds."""
    if not runs:
        return "–"
    finished = sorted((run for run in runs if run.outcome == "finished"), key=lambda run: run.seed)
    scores = [run.last if run.test_score is None else run.test_score for run in finished]
    if not scores:
        return f"diverged ({len(runs)} of {len(runs)})"
    if len(scores) < 3:
        lost = f", diverged {len(runs) - len(scores)} of {len(runs)}" if len(scores) < len(runs) else ""
        return f"{', '.join(f'{score:.1f}' for score in scores)} ({len(scores)} seed{'s' * (len(scores) > 1)}){lost}"
    half = stdev(scores) / len(scores) ** 0.5 * stats.t.ppf(0.975, len(scores) - 1)
    return f"{mean(scores):.1f} ± {half:.1f}"


@pytest.mark.parametrize("page", ["README.md", "results/README.md"])
def test_the_main_table_is_what_the_rows_give(page: str):
    runs = [run for run in FOLDERS["laptop"] if select.plain(run)]  # the other studies have runs of the same methods
    lines = (RESULTS.parent / page).read_text(encoding="utf-8").splitlines()
    for label in ("gpipe", "pipedream", "async", "t1", "t2", "t1+t2", "t1+t2+t3"):
        cells = [
            _cell([run for run in runs if run.task == task and run.method == label])
            for task in ("cifar10", "multi30k", "iwslt14")
        ]
        assert any(line.startswith(f"| `{label}`") and line.endswith(f" | {' | '.join(cells)} |") for line in lines), (
            cells
        )


def test_the_longer_runs_are_told_as_they_ended():
    """Beside the main table: fewer seeds of a longer training, rows only."""
    lines = (RESULTS / "README.md").read_text(encoding="utf-8").splitlines()
    for run in rows.read(RESULTS / "longer"):
        told = f"{run.last:.1f}" if run.outcome == "finished" else run.outcome
        assert any(line.startswith(f"| `{run.method}`") and line.endswith(f"| {told} |") for line in lines), run.name
