"""The list of figures, the choice of runs, and what the command says where runs are missing."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from paper_figures import registry
from paper_figures.runs import select
from pipemare_exp import cli
from pipemare_exp.analysis.row import RunRow
from pipemare_exp.errors import UserError

ROOT = Path(__file__).resolve().parents[2]


def row(method="t1", seed=0, overrides=(), settings=(), created="2026-01-01T00:00:00Z", **more) -> RunRow:
    """A row that is never drawn: only the choice among rows is tested with it."""
    given = {
        "name": f"{method}-{seed}-{created}-{sorted(settings)}-{more}",
        "task": "digits",
        "scale": "demo",
        "method": method,
        "seed": seed,
        "overrides": list(overrides),
        "settings": {"optimizer.rate": "0.05", "method.label": method, **dict(settings)},
        "outcome": "finished",
        "created": created,
        "metric": "accuracy",
    }
    return RunRow(**{**given, **more})


def test_names_are_distinct_and_modules_exist():
    names = [entry.name for entry in registry.ENTRIES]
    assert len(names) == len(set(names))
    for entry in registry.ENTRIES:
        assert entry.what()
    assert {entry.kind for entry in registry.ENTRIES} == {"theory", "costs", "runs"}


def test_studies_and_figures_name_each_other():
    families = {entry.family for entry in registry.ENTRIES}
    files = {path.stem: yaml.safe_load(path.read_text()) for path in (ROOT / "sweeps").glob("*.yaml")}
    assert files
    for study in files.values():
        assert set(study.get("figures", ())) <= families
    for entry in registry.ENTRIES:
        if entry.kind == "runs":
            assert entry.family in files[entry.study]["figures"], entry.name


def test_a_family_stands_for_its_tasks():
    assert [entry.task for entry in registry.find(["ablation"])] == list(registry.TASKS)
    assert [entry.name for entry in registry.find(["table1", "ablation_digits"])] == ["table1", "ablation_digits"]


def test_list_has_one_line_each_name_first(tmp_path, capsys):
    assert cli.main(["figures", "--list", "--runs", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [entry.name for entry in registry.ENTRIES]
    for line, entry in zip(lines, registry.ENTRIES, strict=True):
        if entry.kind == "runs":
            assert line.split()[1] == "missing"
            assert f"pipemare sweep {entry.study}_{entry.task} scale=" in line
        else:
            assert line.split()[1] == "ready"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["ablaton"], 'no figure or table "ablaton"; did you mean "ablation"?'),
        (["ablation_digits"], "make them with `pipemare sweep ablation_digits scale=demo`"),
        (["ablation_digits", "--scale", "laptop"], "make them with `pipemare sweep ablation_digits scale=laptop`"),
        (["hogwild"], "make them with `pipemare sweep hogwild_digits scale=demo`"),
        (["sensitivity_d_cifar10"], "two values of method.discrepancy_correction.decay for one method"),
        (["table1", "--scale", "dmo"], 'scale "dmo"; allowed: demo, laptop, paper; did you mean "demo"?'),
    ],
)
def test_what_is_missing_is_said_with_its_remedy(arguments, words, tmp_path, capsys):
    out = tmp_path / "out"
    assert cli.main(["figures", *arguments, "--runs", str(tmp_path), "--out", str(out)]) == 2
    assert words in capsys.readouterr().err
    assert not out.exists()


def test_absent_runs_and_unwritable_out_are_named(tmp_path, capsys):
    assert cli.main(["figures", "table1", "--runs", str(tmp_path / "absent")]) == 2
    assert "no such folder" in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    arguments = ["figures", "table1", "--runs", str(tmp_path), "--out", str(tmp_path / "file" / "x")]
    assert cli.main(arguments) == 2
    assert "choose another folder with --out DIR" in capsys.readouterr().err


def needs_t1_and_t2(group):
    return select.lacking(group, ("t1", "t2"))


def pair(**more) -> list[RunRow]:
    return [row("t1", **more), row("t2", **more)]


SHORT = {"overrides": ["epochs=1"], "settings": [("epochs", "1")]}
LONG = {"overrides": ["epochs=9"], "settings": [("epochs", "9")]}


def names(rows) -> list[str]:
    return sorted(one.name for one in rows)


def test_plain_runs_are_those_without_overrides_that_change_the_result():
    neutral = [
        "task=digits",
        "method=t1",
        "seed=3",
        "tracking=none",
        "method.lr_rescheduling.enabled=true",
        "threads=1",
    ]
    assert select.plain(row(overrides=neutral))
    assert not select.plain(row(overrides=["optimizer.rate=0.1"]))
    assert select.plain(row(overrides=["optimizer.rate=0.1"]), ("optimizer.rate",))


def test_the_plain_variant_is_taken_before_others():
    chosen, lacks = select.choose(pair() + pair(**SHORT), needs_t1_and_t2)
    assert lacks == []
    assert names(chosen) == names(pair())


def test_another_variant_is_taken_where_it_alone_is_whole():
    chosen, lacks = select.choose([row("t1"), *pair(**SHORT)], needs_t1_and_t2)
    assert lacks == []
    assert names(chosen) == names(pair(**SHORT))


def test_two_whole_variants_are_not_guessed_between():
    with pytest.raises(UserError, match="epochs: 1, 9.*--only"):
        select.choose(pair(**SHORT) + pair(**LONG), needs_t1_and_t2)


def test_variants_are_never_pooled_to_fill_a_gap():
    _, lacks = select.choose([row("t1"), row("t2", **SHORT)], needs_t1_and_t2)
    assert lacks in (["t1"], ["t2"])


DECAY = "method.discrepancy_correction.decay"


def test_a_run_that_another_study_asked_for_counts_where_its_settings_are_the_recipes():
    """A sweep does not train a cell twice: the ablation's run may have been made by the study of D."""
    recipe = row("t2", settings=[(DECAY, "0.5")])
    same = row("t1+t2", overrides=[f"{DECAY}=0.5"], settings=[(DECAY, "0.5")])
    other = row("t1+t2", overrides=[f"{DECAY}=0.9"], settings=[(DECAY, "0.9")])
    found = select.variants([row("t1"), recipe, same, other])
    assert [names(one) for one in found] == [names([row("t1"), recipe, same])]
    # on the axis itself all of them are points
    assert [names(one) for one in select.variants([recipe, same, other], (DECAY,))] == [names([recipe, same, other])]


def test_values_that_were_all_asked_for_make_sets_of_their_own():
    made = [row("t2", overrides=[f"{DECAY}={d}"], settings=[(DECAY, d)]) for d in ("0.5", "0.9")]
    assert [names(one) for one in select.variants(made)] == [names(made[:1]), names(made[1:])]


def test_a_synchronous_run_serves_every_cut():
    cut = {stages: [("pipeline.stages", stages)] for stages in ("4", "43")}
    flushed = row("gpipe", settings=cut["43"])
    few, many = row("t1", settings=cut["4"]), row("t1", settings=cut["43"])
    found = select.variants([flushed, few, many])
    assert sorted(names(one) for one in found) == sorted([names([few, flushed]), names([many, flushed])])
    slow = row("gpipe", settings=[("optimizer.rate", "0.01"), *cut["43"]])
    assert names([slow]) in [names(one) for one in select.variants([slow, many])]


def test_a_rerun_replaces_the_run_before():
    old, new = row(created="2026-01-01T00:00:00Z"), row(created="2026-02-01T00:00:00Z")
    assert select.newest([new, old]) == [new]
    assert len(select.newest([old, row(seed=1)])) == 2


def test_only_finished_and_diverged_runs_of_the_task_and_scale_count():
    rows = [
        row(),
        row(seed=1, outcome="diverged"),
        row(seed=2, outcome="running"),
        row(seed=3, task="cifar10"),
        row(seed=4, scale="laptop"),
    ]
    assert [one.seed for one in select.ended(rows, "digits", "demo")] == [0, 1]


def test_hogwild_table_pairs_by_seed_at_each_delay():
    from paper_figures.runs import hogwild_table

    best = {("hogwild", 2.0): [90.0, 80.0], ("hogwild+t1", 2.0): [91.0, 83.0], ("hogwild", 8.0): [50.0, None]}
    rows = [
        row(method, seed, best=value, delay_scale=delay, outcome="diverged" if value is None else "finished")
        for (method, delay), values in best.items()
        for seed, value in enumerate(values)
    ]
    two, eight = hogwild_table.numbers(rows, "delay_scale")
    assert (two["without_mean"], two["with_mean"], two["difference"]) == (85.0, 87.0, 2.0)
    assert two["difference_half_width"] == pytest.approx(12.706204736 * 2**0.5 / 2**0.5, rel=1e-6)
    assert (eight["without_mean"], eight["without_diverged"], eight["with_runs"]) == (50.0, 1, 0)
    assert eight["difference"] is None


def test_recompute_numbers_count_activations():
    from paper_figures.runs import recompute

    rows = [row("t1+t2", 0, best=90.0, stages=16, microbatches=4, segment=segment) for segment in (None, 4)]
    rows[0], rows[1] = rows
    assert recompute.missing(rows, "segment") == []
    assert recompute.missing(rows[:1], "segment")
    none, four = recompute.numbers(rows)
    assert (none["activations"], four["activations"]) == (256, 16 * 4 + 256 // 4 - 16)


def test_a_table_is_read_back_from_its_markdown(tmp_path):
    from paper_figures import tables

    columns, rows = [("a", "A|a"), ("b", "B")], [{"a": "1 | 2", "b": ""}, {"a": "", "b": "x|y"}]
    tables.save(tmp_path / "t", "What it is", columns, rows, ["a note - with a dash"])
    read = tables.read_markdown((tmp_path / "t.md").read_text())
    assert read == ("What it is", ["A|a", "B"], [["1 | 2", ""], ["", "x|y"]], ["a note - with a dash"])
