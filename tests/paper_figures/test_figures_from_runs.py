"""Figures of real tiny runs: every number in a CSV against one worked out here from the runs' own files."""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from paper_figures import registry
from paper_figures.runs import curves, metric_over_epochs
from pipemare_exp import cli
from pipemare_exp.analysis import rows
from pipemare_exp.errors import UserError

T_975 = {1: 12.706204736, 2: 4.30265273}  # Student's t, 97.5 %, by degrees of freedom
STAGES, MICROBATCHES, PER_EPOCH = 6, 4, 6  # 1,400 digits in minibatches of 256


def logged(
    root: Path, method: str, seed: int | None = None, rate: str | None = None, more: str = ""
) -> list[list[float]]:
    """Accuracies over epochs of a method's runs (`more`: with this override), read straight from metrics.jsonl."""
    found = []
    for folder in sorted(root.iterdir()):
        if not folder.name.startswith(f"digits-{method}-"):
            continue
        overrides = json.loads((folder / "overrides.json").read_text())
        rates = [one for one in overrides if one.startswith("optimizer.rate")]
        wanted = [] if rate is None else [f"optimizer.rate={rate}"]
        if rates != wanted or (seed is not None and f"seed={seed}" not in overrides):
            continue
        if ("pipeline.recompute=2" in overrides or "hogwild" in method) and more not in overrides:
            continue
        if more and more not in overrides:
            continue
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        found.append([line["accuracy"] for line in lines if line["kind"] == "eval"])
    assert found
    return found


def number(text: str) -> float | None:
    return float(text) if text else None


def test_metric_over_epochs_is_mean_and_t_interval(tiny_runs, tmp_path, table):
    runs = [run for run in rows.read(tiny_runs) if run.rate == 0.1]
    runs = [run for run in runs if "hogwild" not in run.name and run.segment is None]
    paths = metric_over_epochs.draw(runs, "digits", tmp_path / "figure")
    assert [path.suffix for path in paths] == [".svg", ".png", ".csv"]
    assert Image.open(paths[1]).info["dpi"] == pytest.approx((200, 200), abs=0.1)
    lines = [line for line in table(paths[2]) if line["method"] == "t1+t2+t3"]
    curves = logged(tiny_runs, "pipemare")
    assert len(curves) == 3
    for line, values in zip(lines, zip(*curves, strict=True), strict=True):
        half = T_975[2] * statistics.stdev(values) / math.sqrt(3)
        assert float(line["mean"]) == pytest.approx(statistics.mean(values), rel=1e-9)
        assert float(line["low"]) == pytest.approx(max(0, statistics.mean(values) - half), rel=1e-7)
        assert float(line["high"]) == pytest.approx(min(100, statistics.mean(values) + half), rel=1e-7)
        assert line["n"] == "3"
    single = [line for line in table(paths[2]) if line["method"] == "pipedream"]
    assert [float(line["mean"]) for line in single] == pytest.approx(logged(tiny_runs, "pipedream")[0])
    assert all(line["low"] == "" for line in single)


def test_runs_of_several_settings_are_not_averaged(tiny_runs, tmp_path):
    with pytest.raises(UserError, match="several variants on one figure .*optimizer.rate: 0.01, 0.1, 1000.0"):
        metric_over_epochs.draw(rows.read(tiny_runs), "digits", tmp_path / "figure")
    assert not list(tmp_path.iterdir())


def test_modelled_time_charges_the_flush(tiny_runs, tmp_path, table):
    logged_rows = rows.read(tiny_runs)
    entry = registry.find(["metric_over_time_digits"])[0]
    paths = entry.make(tmp_path, logged_rows, "demo")
    ratio = (MICROBATCHES + STAGES - 1) / MICROBATCHES
    for line in table(paths[2]):
        step = int(line["epoch"]) * PER_EPOCH
        # T3's warm-up, 3 epochs, is longer than these runs
        expected = step * ratio if line["method"] in ("gpipe", "t1+t2+t3") else step
        assert float(line["x"]) == pytest.approx(expected)


def test_table2_against_the_files(tiny_runs, tmp_path, table):
    entry = registry.find(["table2_digits"])[0]
    paths = entry.make(tmp_path, rows.read(tiny_runs), "demo")
    lines = {line["method"]: line for line in table(paths[2])}
    best = [max(curve) for curve in logged(tiny_runs, "gpipe")]
    target = statistics.mean(best) - 1.0
    assert float(lines["gpipe"]["best_mean"]) == pytest.approx(statistics.mean(best))
    assert float(lines["gpipe"]["target"]) == pytest.approx(target)
    for label, name in (("gpipe", "gpipe"), ("t1+t2+t3", "pipemare"), ("pipedream", "pipedream")):
        firsts = [
            next((epoch for epoch, value in enumerate(curve, 1) if value >= target), None)
            for curve in logged(tiny_runs, name)
        ]
        assert int(lines[label]["reached"]) == sum(first is not None for first in firsts)
        if None in firsts:
            assert lines[label]["epochs_to_target"] == ""
        else:
            assert float(lines[label]["epochs_to_target"]) == pytest.approx(statistics.mean(firsts))
    ratio = (MICROBATCHES + STAGES - 1) / MICROBATCHES
    assert float(lines["gpipe"]["throughput_over_gpipe"]) == pytest.approx(1)
    assert float(lines["pipedream"]["throughput_over_gpipe"]) == pytest.approx(ratio)
    # weights and momentum; P/N for the stash; one W for T2
    assert float(lines["gpipe"]["memory_W"]) == 2
    assert float(lines["pipedream"]["memory_W"]) == pytest.approx(2 + STAGES / MICROBATCHES)
    assert float(lines["t2"]["memory_W"]) == 3
    assert float(lines["t1"]["memory_W"]) == 2
    text = paths[0].read_text()
    assert "| GPipe (synchronous) | 3 (0) |" in text


def test_table3_pairs_by_seed(tiny_runs, tmp_path, table):
    paths = registry.find(["table3_digits"])[0].make(tmp_path, rows.read(tiny_runs), "demo")
    lines = {line["method"]: line for line in table(paths[2])}
    gaps = [
        max(logged(tiny_runs, "pipemare", seed)[0]) - max(logged(tiny_runs, "gpipe", seed)[0]) for seed in (0, 1, 2)
    ]
    assert float(lines["t1+t2+t3"]["difference"]) == pytest.approx(statistics.mean(gaps), abs=1e-9)
    half = T_975[2] * statistics.stdev(gaps) / math.sqrt(3)
    assert float(lines["t1+t2+t3"]["difference_half_width"]) == pytest.approx(half, abs=1e-7)
    assert lines["t1"]["pairs"] == "1"
    assert lines["t1"]["difference_half_width"] == ""
    assert r"\toprule" in paths[1].read_text()
    assert "test_mean" in lines["t1"] and lines["t1"]["test_mean"] == "" and "test" not in paths[0].read_text().lower()


def test_table3_has_the_final_test_where_there_was_one(tiny_runs, tmp_path, table):
    tested = [replace(row, metric="bleu", test={"tokenised_bleu": 10.0 + row.seed}) for row in rows.read(tiny_runs)]
    paths = registry.find(["table3_digits"])[0].make(tmp_path, tested, "demo")
    assert float(table(paths[2])[0]["test_mean"]) == pytest.approx(11.0)
    assert "| 11.0 ± 2.5 |" in paths[0].read_text() and "BLEU of the test set" in paths[0].read_text()


def test_ablation_holds_every_run_once(tiny_runs, tmp_path, table):
    paths = registry.find(["ablation_digits"])[0].make(tmp_path, rows.read(tiny_runs), "demo")
    best = [line for line in table(paths[2]) if line["panel"] == "best"]
    assert len(best) == 11  # 3 + 3 seeds, and one each of five other methods; no run of another rate
    for line in best:
        name = {"t1+t2": "t1_t2", "t1+t2+t3": "pipemare"}.get(line["method"], line["method"])
        assert float(line["best"]) == pytest.approx(max(logged(tiny_runs, name, int(line["seed"]))[0]))


def test_sensitivity_to_the_rate(tiny_runs, tmp_path, table):
    paths = registry.find(["sensitivity_rate_digits"])[0].make(tmp_path, rows.read(tiny_runs), "demo")
    lines = {float(line["value"]): line for line in table(paths[2])}
    assert {line["method"] for line in lines.values()} == {"t1"}
    slow = [max(curve) for curve in logged(tiny_runs, "t1", rate="0.01")]
    assert len(slow) == 2
    assert float(lines[0.01]["best_mean"]) == pytest.approx(statistics.mean(slow))
    assert float(lines[0.01]["best_half_width"]) == pytest.approx(
        T_975[1] * statistics.stdev(slow) / math.sqrt(2), rel=1e-6
    )
    assert lines[1000.0]["diverged"] == "1"
    assert lines[1000.0]["best_mean"] == ""
    assert lines[0.1]["n"] == "1"


def test_hogwild_figure_and_table(tiny_runs, tmp_path, table):
    logged_rows = rows.read(tiny_runs)
    figure, numbers = (
        registry.find([name])[0].make(tmp_path, logged_rows, "demo")[2]
        for name in ("hogwild_digits", "hogwild_table_digits")
    )
    lines = {(line["method"], float(line["value"])): line for line in table(figure)}
    assert len(lines) == 4
    compared = {float(line["delay_scale"]): line for line in table(numbers)}
    for scale in (0.5, 2.0):
        more = f"method.delay_scale={scale}"
        without, with_t1 = (max(logged(tiny_runs, name, more=more)[0]) for name in ("hogwild", "hogwild_t1"))
        assert float(lines["hogwild", scale]["best_mean"]) == pytest.approx(without)
        assert float(lines["hogwild+t1", scale]["best_mean"]) == pytest.approx(with_t1)
        assert float(compared[scale]["difference"]) == pytest.approx(with_t1 - without, abs=1e-8)


def test_recompute_figure(tiny_runs, tmp_path, table):
    paths = registry.find(["recompute_digits"])[0].make(tmp_path, rows.read(tiny_runs), "demo")
    none, two = table(paths[2])
    assert (none["method"], none["segment"], two["segment"]) == ("t1", "", "2")
    assert float(none["best_mean"]) == pytest.approx(max(logged(tiny_runs, "t1")[0]))
    assert float(two["best_mean"]) == pytest.approx(max(logged(tiny_runs, "t1", more="pipeline.recompute=2")[0]))
    # P^2, and P S + P^2/S - P where S divides P
    assert (int(none["activations"]), int(two["activations"])) == (36, 6 * 2 + 36 // 2 - 6)


def test_a_diverged_run_is_marked_where_it_ended(tiny_runs, tmp_path, table):
    lost = [run for run in rows.read(tiny_runs) if run.outcome == "diverged"]
    assert len(lost) == 1
    paths = metric_over_epochs.draw(lost, "digits", tmp_path / "figure")
    (line,) = [line for line in table(paths[2]) if line["diverged_at_step"]]
    assert int(line["diverged_at_step"]) == lost[0].step
    assert line["epoch"] == "0"
    assert line["mean"] == ""


def test_committed_rows_redraw_the_same_bytes(tiny_runs, tmp_path):
    committed = tmp_path / "committed"
    assert cli.main(["figures", "--runs", str(tiny_runs), "--rows", str(committed)]) == 0
    names = ["metric_over_epochs_digits", "ablation_digits", "table2_digits", "sensitivity_rate_digits"]
    for source, out in ((tiny_runs, "a"), (committed, "b")):
        assert cli.main(["figures", *names, "--runs", str(source), "--out", str(tmp_path / out)]) == 0
    made = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert len(made) == 12
    for name in made:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name
    # no place on this machine is in what would be committed
    assert str(tiny_runs) not in (committed / "runs.csv").read_text()


def test_rows_survive_the_files(tiny_runs, tmp_path):
    read = rows.read(tiny_runs)
    rows.write(read, tmp_path)
    key = lambda row: row.name  # noqa: E731
    assert sorted(rows.read(tmp_path), key=key) == sorted(read, key=key)
    assert len(read) == 19


def test_a_damaged_run_costs_no_other(tiny_runs, tmp_path, capsys):
    for folder in sorted(tiny_runs.iterdir())[:2]:
        (tmp_path / folder.name).symlink_to(folder)
    damaged = tmp_path / "digits-gpipe-demo-s0-00000000"
    damaged.mkdir()
    (damaged / "config.yaml").write_text("seed: 0\n")
    assert [row.outcome for row in rows.read(tmp_path)].count("damaged") == 1 and len(rows.read(tmp_path)) == 3
    assert cli.main(["figures", "--runs", str(tmp_path), "--rows", str(tmp_path / "rows")]) == 0
    assert "left out, damaged: digits-gpipe-demo-s0-00000000: config.yaml holds" in capsys.readouterr().err
    assert len(rows.read(tmp_path / "rows")) == 2


def test_damaged_committed_rows_are_named(tmp_path):
    (tmp_path / "runs.csv").write_text("identity,name\nx,y\n")
    with pytest.raises(UserError, match=r"metrics\.csv"):
        rows.read(tmp_path)


def test_only_chooses_among_settings(tiny_runs, tmp_path, capsys):
    arguments = ["figures", "ablation_digits", "--runs", str(tiny_runs), "--out", str(tmp_path)]
    assert cli.main([*arguments, "--only", "optimizer.rate=0.01"]) == 2
    assert "no runs at scale demo of async, t2" in capsys.readouterr().err


def test_all_that_is_ready_is_made_and_the_rest_is_named(tiny_runs, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(registry, "ENTRIES", tuple(e for e in registry.ENTRIES if e.task == "digits"))
    assert cli.main(["figures", "--runs", str(tiny_runs), "--out", str(tmp_path)]) == 0
    captured = capsys.readouterr()
    assert "table2_digits_demo.md" in captured.out
    assert (
        "skipped sensitivity_d_digits: missing two values of method.discrepancy_correction.decay for one method: "
        "pipemare sweep sensitivity_d_digits scale=demo"
    ) in captured.err
    assert not list(tmp_path.glob("sensitivity_d*"))


def test_nothing_is_drawn_without_runs(tmp_path):
    with pytest.raises(UserError, match="pipemare sweep end_to_end_digits"):
        metric_over_epochs.draw([], "digits", tmp_path / "figure")
    assert not list(tmp_path.iterdir())


def test_a_title_says_how_many_seeds_the_cells_have(tiny_runs):
    synchronous = [row for row in rows.read(tiny_runs) if row.method == "gpipe"]
    settings = synchronous[0].settings
    runs = [row for row in synchronous if row.settings == settings]
    one = [row for row in runs if row.seed == 0]
    assert curves.seeds_text(one) == "1 seed"
    assert curves.seeds_text(runs) == "3 seeds"
    assert curves.seeds_text([*runs, replace(one[0], method="t1")]) == "1 to 3 seeds"
