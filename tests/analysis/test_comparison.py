"""The comparison of methods against numbers computed here."""

import json

import numpy as np
import pytest
from scipy import stats

from pipemare_exp import metrics
from pipemare_exp.analysis import rows, words
from pipemare_exp.analysis.comparison import compare
from pipemare_exp.commands import compare as compare_command
from pipemare_exp.errors import UserError
from tests.experiment.run_folders import write_run
from tests.made_up_metric import BITS


def row_of(rows, method, **match):
    found = [row for row in rows if row["method"] == method and all(row.get(k) == v for k, v in match.items())]
    assert len(found) == 1
    return found[0]


def run_cli(module, *arguments):
    import argparse

    parser = argparse.ArgumentParser()
    module.add_arguments(parser)
    return module.run(parser.parse_args(list(arguments)))


@pytest.fixture
def ladder(tmp_path):
    """Three seeds of five methods: one diverges always, one sometimes."""
    for seed, (best, last) in enumerate([(99.4, 99.0), (99.0, 98.6), (99.8, 99.8)]):
        write_run(tmp_path, "gpipe", seed, (best, last))
    for seed, last in enumerate([97.6, 97.5, 98.3]):
        write_run(tmp_path, "t1+t2+t3", seed, (90.0, last))
    for seed in range(3):
        write_run(tmp_path, "async", seed, (80.0,), outcome="diverged")
    write_run(tmp_path, "t1+t2", 0, (90.0, 98.9))
    write_run(tmp_path, "t1+t2", 1, (90.0, 98.8))
    write_run(tmp_path, "t1+t2", 2, (50.0,), outcome="diverged")
    write_run(tmp_path, "pipedream", 0, (90.0, 97.0))
    write_run(tmp_path, "pipedream", 1, (91.0,), outcome="interrupted")
    return tmp_path


def test_means_and_intervals_over_finished_runs(ladder):
    compared = compare(rows.read(ladder), "digits")
    assert [row["method"] for row in compared] == ["gpipe", "pipedream", "async", "t1+t2", "t1+t2+t3"]
    sync = row_of(compared, "gpipe")
    values = np.array([99.0, 98.6, 99.8])
    low, high = stats.t.interval(0.95, 2, loc=values.mean(), scale=stats.sem(values))
    assert sync["n"] == 3 and sync["outcomes"] == {"finished": 3} and sync["metric"] == "accuracy"
    assert sync["last_mean"] == pytest.approx(values.mean())
    assert sync["last_ci95"] == pytest.approx((high - low) / 2)
    assert sync["best_mean"] == pytest.approx(np.mean([99.4, 99.0, 99.8]))
    assert sync["verdict"] == "the reference" and "test_mean" not in sync  # images are tested as they go


def test_diverged_runs_are_counted_and_not_averaged(ladder):
    compared = compare(rows.read(ladder), "digits")
    nothing = row_of(compared, "async")
    assert nothing["n"] == 3 and nothing["outcomes"] == {"diverged": 3}
    assert nothing["best_mean"] is None and nothing["last_mean"] is None and nothing["last_ci95"] is None
    assert nothing["verdict"] == "diverged 3 of 3"
    some = row_of(compared, "t1+t2")
    assert some["n"] == 3 and some["outcomes"] == {"diverged": 1, "finished": 2}
    assert some["last_mean"] == pytest.approx(98.85)
    assert some["verdict"].endswith("; diverged 1 of 3")


def test_difference_is_paired_by_seed(ladder):
    row = row_of(compare(rows.read(ladder), "digits"), "t1+t2+t3")
    paired = stats.ttest_rel([97.6, 97.5, 98.3], [99.0, 98.6, 99.8])
    interval = paired.confidence_interval(0.95)
    assert row["difference"]["n"] == 3
    assert row["difference"]["mean"] == pytest.approx(np.mean([-1.4, -1.1, -1.5]))
    assert row["difference"]["ci95"] == pytest.approx((interval.high - interval.low) / 2)
    assert row["verdict"] == "worse by 1.3 ± 0.5"


def test_runs_without_a_result_are_shown_and_not_counted(ladder):
    row = row_of(compare(rows.read(ladder), "digits"), "pipedream")
    assert row["n"] == 1 and row["outcomes"] == {"finished": 1, "interrupted": 1}
    assert row["last_mean"] == 97.0 and row["last_ci95"] is None
    assert row["difference"] == {"n": 1, "mean": pytest.approx(-2.0), "ci95": None}


def test_runs_that_differ_in_more_than_the_seed_are_variants(tmp_path):
    for rate in (0.05, 0.1):
        for seed in (0, 1):
            optimizer = {"name": "sgd", "rate": rate}
            write_run(tmp_path, "gpipe", seed, (90.0, 95.0 + seed + 10 * rate), optimizer=optimizer)
            write_run(tmp_path, "t1", seed, (90.0, 94.0 + seed), optimizer=optimizer)
    compared = compare(rows.read(tmp_path), "digits")
    assert len(compared) == 4 and all(row["n"] == 2 for row in compared)
    fast = row_of(compared, "t1", variant="optimizer.rate=0.1")
    slow = row_of(compared, "t1", variant="optimizer.rate=0.05")
    assert fast["difference"]["mean"] == pytest.approx(-2.0)  # from the synchronous runs of the same rate
    assert slow["difference"]["mean"] == pytest.approx(-1.5)


def test_runs_of_other_settings_are_no_reference_even_where_they_are_the_only_ones(tmp_path):
    write_run(tmp_path, "gpipe", 0, epochs=1)
    write_run(tmp_path, "t1", 0, epochs=9, optimizer={"name": "sgd", "rate": 0.1})
    row = row_of(compare(rows.read(tmp_path), "digits"), "t1")
    assert row["difference"] is None
    assert row["verdict"] == "no synchronous run with these settings (epochs 1, here 9; optimizer.rate 0.05, here 0.1)"


def test_the_nearest_synchronous_runs_say_what_differs(tmp_path):
    write_run(tmp_path, "gpipe", 0, epochs=1, optimizer={"name": "adamw", "rate": 0.1})
    write_run(tmp_path, "gpipe", 0, epochs=3)
    write_run(tmp_path, "t1", 0, epochs=2, data={"validation": 200})
    row = row_of(compare(rows.read(tmp_path), "digits"), "t1")
    assert row["verdict"].endswith("(data.validation unset, here 200; epochs 3, here 2)")


def test_synchronous_runs_serve_every_cut_those_of_the_same_one_first(tmp_path):
    """The cut changes no weight of a synchronous run."""
    write_run(tmp_path, "gpipe", 0, (90.0, 95.0), pipeline={"stages": 4})
    write_run(tmp_path, "t1", 0, (90.0, 94.0), pipeline={"stages": 43, "slots": "duplex"})
    assert row_of(compare(rows.read(tmp_path), "digits"), "t1")["difference"]["mean"] == pytest.approx(-1)
    write_run(tmp_path, "gpipe", 0, (90.0, 97.0), pipeline={"stages": 43})
    assert row_of(compare(rows.read(tmp_path), "digits"), "t1")["difference"]["mean"] == pytest.approx(-3)


def test_of_a_metric_of_which_less_is_better_less_is_better(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(metrics.METRICS, "bits", BITS)
    for seed in range(3):
        write_run(tmp_path, "gpipe", seed, (2.5, 1.2 + 0.1 * seed, 1.3 + 0.1 * seed), metric="bits")
        write_run(tmp_path, "t1", seed, (2.5, 1.1 + 0.1 * seed, 1.15 + 0.101 * seed), metric="bits")
        write_run(tmp_path, "t1+t2", seed, (2.5, 1.5 + 0.101 * seed), metric="bits")
    write_run(tmp_path, "async", 0, (1.4, 1.9), metric="bits", outcome="interrupted")
    (so_far,) = (row for row in rows.read(tmp_path) if row.method == "async")
    assert (so_far.best, so_far.last) == (1.4, 1.9)
    gpipe, _, better, worse = compare(rows.read(tmp_path), "digits")
    assert gpipe["best_mean"] == pytest.approx(1.3) and gpipe["last_mean"] == pytest.approx(1.4)
    assert better["difference"]["mean"] == pytest.approx(-0.149) and better["verdict"] == "better by 0.149 ± 0.002"
    assert worse["difference"]["mean"] == pytest.approx(0.201) and worse["verdict"] == "worse by 0.201 ± 0.002"
    run_cli(compare_command, "digits", "--runs", str(tmp_path))
    shown = capsys.readouterr().out
    assert "scale demo: bits per byte" in shown and "-0.149 ± 0.002" in shown


def test_a_variant_is_named_by_the_last_parts_of_its_settings_unless_two_are_the_same():
    two = {"variant": "method.delay_scale=0.5, optimizer.rate=0.1"}
    assert words.variant(two) == "delay_scale=0.5, rate=0.1"
    both = "method.lr_rescheduling.steps=3, method.sync_warmup.steps=4"
    assert words.variant({"variant": both}) == both
    assert words.variant({}) == ""


def test_the_boundaries_name_a_variant_only_where_nothing_shorter_does(tmp_path):
    for stages, boundaries in ((2, [0, 1]), (3, [0, 1, 2])):
        write_run(tmp_path, "t1", 0, pipeline={"stages": stages, "boundaries": boundaries})
    compared = compare(rows.read(tmp_path), "digits")
    assert {row["variant"] for row in compared} == {"pipeline.stages=2", "pipeline.stages=3"}
    write_run(tmp_path, "t1", 0, pipeline={"stages": 2, "boundaries": [0, 2]})
    compared = compare(rows.read(tmp_path), "digits")
    assert "pipeline.boundaries=[0, 2], pipeline.stages=2" in {row["variant"] for row in compared}


def test_what_cannot_change_a_result_makes_no_variant(tmp_path):
    write_run(tmp_path, "gpipe", 0, checkpoint={"every_steps": 3, "keep": 2}, threads=1)
    write_run(
        tmp_path,
        "gpipe",
        1,
        tracking={"name": "mlflow", "uri": "sqlite:///x.db", "experiment": "y"},
        threads=2,
    )
    (row,) = compare(rows.read(tmp_path), "digits")
    assert row["n"] == 2 and "variant" not in row


def test_the_final_test_is_compared_where_it_is_on_data_of_its_own(tmp_path):
    for seed, bleu in enumerate((30.0, 31.0, 33.0)):
        write_run(tmp_path, "gpipe", seed, test={"tokenised_bleu": bleu, "sacrebleu": bleu - 1}, metric="bleu")
        write_run(tmp_path, "t1", seed, test={"tokenised_bleu": bleu - 2 - seed}, metric="bleu")
    write_run(tmp_path, "t1", 3, (50.0,), outcome="diverged", test={"tokenised_bleu": 1.0}, metric="bleu")
    sync, t1 = compare(rows.read(tmp_path), "digits")
    assert sync["test_mean"] == pytest.approx(94 / 3) and sync["test_difference"] is None
    assert t1["test_difference"]["n"] == 3 and t1["test_difference"]["mean"] == pytest.approx(-3)
    assert t1["test_difference"]["ci95"] == pytest.approx(stats.t.ppf(0.975, 2) / np.sqrt(3))


def test_subset_of_the_data_is_said(tmp_path):
    write_run(tmp_path, "gpipe", 0, notes={"train": "10,000-image subset"})
    (row,) = compare(rows.read(tmp_path), "digits")
    assert row["subset"] == "train: 10,000-image subset"


def test_compare_json_has_the_documented_keys_only_on_stdout(ladder, capsys):
    assert run_cli(compare_command, "digits", "--runs", str(ladder), "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) == 5
    for row in rows:
        assert set(row) >= {"task", "scale", "method", "n", "outcomes", "metric", "best_mean", "best_ci95",
                            "last_mean", "last_ci95"}  # fmt: skip


def test_compare_table_is_readable(ladder, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    run_cli(compare_command, "digits", "--runs", str(ladder))
    lines = capsys.readouterr().out.splitlines()
    (ours,) = (line for line in lines if line.startswith("t1+t2+t3"))
    assert "97.8 ± 1.1" in ours and "-1.3 ± 0.5" in ours and "worse by 1.3 ± 0.5" in ours
    (interrupted,) = (line for line in lines if line.startswith("pipedream"))
    assert "1 (+1 interrupted)" in interrupted


def test_no_runs_names_the_command_that_makes_them(tmp_path):
    with pytest.raises(UserError, match="pipemare demo"):
        run_cli(compare_command, "digits", "--runs", str(tmp_path / "absent"))
    with pytest.raises(UserError, match="task=cifar10 method=pipemare"):
        run_cli(compare_command, "cifar10", "--runs", str(tmp_path))
    with pytest.raises(UserError, match='did you mean "digits"'):
        run_cli(compare_command, "digit", "--runs", str(tmp_path))


def test_published_values_come_with_their_source(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "140")
    for method in ("gpipe", "t1+t2", "async"):
        write_run(tmp_path, method, 0, task="cifar10")
    compared = compare(rows.read(tmp_path), "cifar10")
    (ours,) = row_of(compared, "t1+t2")["published"]
    assert ours["value"] == 94.8 and ours["source"].startswith("D: ") and "accuracy" in ours["what"]
    assert row_of(compared, "gpipe")["published"][0]["source"].startswith("S: ")
    assert row_of(compared, "async")["published"] is None
    assert run_cli(compare_command, "cifar10", "--runs", str(tmp_path)) == 0
    out = capsys.readouterr().out
    (line,) = (line for line in out.splitlines() if line.startswith("t1+t2"))
    assert "94.8 [D]" in line and "D: a digest of the paper" in out and "own models and lengths" in out


def test_without_published_values_there_is_no_column(ladder, capsys):
    assert all(row["published"] is None for row in compare(rows.read(ladder), "digits"))
    run_cli(compare_command, "digits", "--runs", str(ladder))
    assert "ublished" not in capsys.readouterr().out


def test_committed_rows_compare_like_the_runs_they_were_made_of(ladder, tmp_path):
    before = compare(rows.read(ladder), "digits")
    rows.write(rows.read(ladder), tmp_path / "committed")
    assert compare(rows.read(tmp_path / "committed"), "digits") == before


def test_a_failed_run_says_why(tmp_path):
    run = write_run(tmp_path, "t1", outcome="failed")
    (run.path / "status.json").write_text(json.dumps({"state": "failed", "error": "OSError: no disk"}))
    (row,) = rows.read(tmp_path)
    assert row.as_json()["problem"] == "OSError: no disk"
