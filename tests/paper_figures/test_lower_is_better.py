"""Figures and tables of a metric of which less is better: targets, verdicts, intervals, marks of diverged runs."""

from __future__ import annotations

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from paper_figures.runs import curves, hogwild_table, sensitivity, table2, table3
from pipemare_exp import metrics
from pipemare_exp.analysis.row import RunRow
from tests.made_up_metric import BITS


@pytest.fixture(autouse=True)
def bits(monkeypatch) -> None:
    monkeypatch.setitem(metrics.METRICS, "bits", BITS)


def row(method: str, seed: int, values: list[float], outcome: str = "finished", **more) -> RunRow:
    evals = [
        {"step": 10 * epoch, "epoch": epoch, "split": "valid", "loss": 1.0, "value": value, "seconds": 1.0}
        for epoch, value in enumerate(values, start=1)
    ]
    best, last = (min(values), values[-1]) if values else (None, None)
    given = {"stages": 4, "microbatches": 4, "step": 10 * len(values), "optimizer": "sgd", "best": best, "last": last}
    return RunRow(
        name=f"{method}-{seed}-{more}", task="digits", scale="demo", method=method, seed=seed, outcome=outcome,
        metric="bits", evals=evals, **given, **more,
    )  # fmt: skip


def three_methods() -> list[RunRow]:
    return [
        *(row("gpipe", seed, [2.0, 1.5 + 0.1 * seed, 1.2 + 0.1 * seed, 1.4]) for seed in (0, 1)),
        *(row("t1+t2+t3", seed, [2.0, 1.1 + 0.1 * seed, 1.0 + 0.1 * seed, 1.3]) for seed in (0, 1)),
        *(row("pipedream", seed, [2.0, 1.9, 1.8, 1.7 + 0.01 * seed]) for seed in (0, 1)),
    ]


def test_table_2_takes_the_first_epoch_at_or_below_the_target():
    gpipe, pipedream, pipemare = table2.numbers(three_methods())
    assert gpipe["best_mean"] == pytest.approx(1.25)
    assert gpipe["target"] == pytest.approx(1.27)  # the synchronous mean best plus the margin
    assert (gpipe["reached"], gpipe["epochs_to_target"]) == (1, None)  # 1.2 and 1.3
    assert (pipedream["reached"], pipedream["time_to_target"]) == (0, None)
    assert (pipemare["reached"], pipemare["epochs_to_target"], pipemare["time_to_target"]) == (2, 2.0, 20.0)


def test_table_3_calls_less_better(tmp_path):
    gpipe, pipedream, pipemare = table3.numbers(three_methods())
    assert pipemare["difference"] == pytest.approx(-0.2) and pipemare["verdict"].startswith("better by 0.200")
    assert pipedream["difference"] > 0 and pipedream["verdict"] == "no difference shown"
    assert gpipe["last_mean"] == pytest.approx(1.4)
    text = table3.draw(three_methods(), "digits", tmp_path / "t")[0].read_text()
    assert "| -0.200" in text and "metric: bits per byte after each epoch" in text


def test_table_2_says_how_the_target_was_set(tmp_path):
    text = table2.draw(three_methods(), "digits", tmp_path / "t")[0].read_text()
    assert "Target: 1.27, synchronous mean best plus 0.02" in text and "best bits per byte of" in text


def test_t1_helps_where_it_makes_the_metric_smaller():
    runs = [row("hogwild", seed, [1.5 + 0.1 * seed], delay_scale=2.0) for seed in range(3)]
    runs += [row("hogwild+t1", seed, [1.4 + 0.1 * seed], delay_scale=2.0) for seed in range(3)]
    (line,) = hogwild_table.numbers(runs, "delay_scale")
    assert line["difference"] == pytest.approx(-0.1) and line["verdict"].startswith("better by 0.100")


def test_intervals_end_where_the_metric_does():
    assert curves.error_bars(BITS, 0.5, 2.0) == (0.5, 2.0)
    assert curves.error_bars(metrics.of("accuracy"), 99.0, 2.0) == (2.0, 1.0)
    (point,) = curves.group_curve([row("t1", 0, [0.1]), row("t1", 1, [0.5])], lambda run, one: one["epoch"])
    assert point["low"] == 0.0 and point["high"] > 2.0


def points(axes: Axes) -> list[tuple[float, float]]:
    return [(float(line.get_xdata()[0]), float(line.get_ydata()[0])) for line in axes.get_lines()
            if line.get_marker() == "X"]  # fmt: skip


def test_a_diverged_run_is_marked_at_the_worse_end():
    axes = Figure().subplots()
    lost = row("t1", 0, [], outcome="diverged")
    curves.draw_curves(axes, [lost], lambda run, one: one["epoch"])
    assert points(axes) == [(0.0, 1.0)]  # in the axis's own units: its upper end
    table = [
        {"method": "t1", "value": value, "best_mean": mean, "best_half_width": None, "diverged": mean is None}
        for value, mean in ((1.0, 1.2), (2.0, 1.3), (3.0, None))
    ]
    axes = Figure().subplots()
    assert sensitivity.draw_points(axes, BITS, table)
    ((x, y),) = points(axes)
    assert (x, y) == (3.0, pytest.approx(1.3 + 4 * BITS.point))
