"""Study files and their expansion into cells, which is a pure function."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from paper_figures import registry
from pipemare_exp.errors import UserError
from pipemare_exp.experiment.config import compose
from pipemare_exp.experiment.config.load import load
from pipemare_exp.experiment.sweep import study_file
from pipemare_exp.experiment.sweep.study import Study, expand, text
from pipemare_exp.experiment.sweep.study_file import find, names

STUDY = """
    about: a study of nothing
    figures: [ablation]
    fixed: {pipeline.microbatches: 4}
    grids:
      - method: [gpipe]
      - method: [t1, t1_t2]
        pipeline.stages: [5, null]
        optimizer.rate: [0.1, 2.0e-3]
    exclude:
      - {method: t1, pipeline.stages: [null], optimizer.rate: 0.1}
    scales:
      demo:
        digits: {seeds: 2}
        numerals: {seeds: [7], fixed: {model.width: 8}, values: {optimizer.rate: [1.0e-3]}}
"""


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Study]:
    def written(content: str = STUDY, name: str = "nothing") -> Study:
        (tmp_path / f"{name}.yaml").write_text(textwrap.dedent(content), encoding="utf-8")
        return study_file.load(name, tmp_path)

    return written


def test_a_study_is_the_union_of_its_grids_less_what_it_excludes_seed_by_seed(write) -> None:
    cells = expand(write(), "demo", "digits")
    common = "scale=demo seed={} pipeline.microbatches=4"
    expected = [
        f"task=digits method={method} {common.format(seed)}{rest}"
        for seed in (0, 1)
        for method, rest in [
            ("gpipe", ""),
            ("t1", " pipeline.stages=5 optimizer.rate=0.1"),
            ("t1", " pipeline.stages=5 optimizer.rate=0.002"),
            ("t1", " optimizer.rate=0.002"),
            ("t1_t2", " pipeline.stages=5 optimizer.rate=0.1"),
            ("t1_t2", " pipeline.stages=5 optimizer.rate=0.002"),
            ("t1_t2", " optimizer.rate=0.1"),
            ("t1_t2", " optimizer.rate=0.002"),
        ]
    ]
    assert [" ".join(cell.overrides) for cell in cells] == expected
    assert [(cell.method, cell.seed) for cell in cells[:2]] == [("gpipe", 0), ("t1", 0)]
    assert cells[1].title == "digits t1 stages=5 rate=0.1, seed 0"
    assert expand(write(), "demo", "digits") == cells


def test_a_task_brings_its_own_seeds_settings_and_values(write) -> None:
    cells = expand(write(), "demo", "numerals")
    assert [" ".join(cell.overrides) for cell in cells] == [
        f"task=numerals method={method} scale=demo seed=7 pipeline.microbatches=4 model.width=8{rest}"
        for method, rest in [
            ("gpipe", ""),
            ("t1", " pipeline.stages=5 optimizer.rate=0.001"),
            ("t1", " optimizer.rate=0.001"),
            ("t1_t2", " pipeline.stages=5 optimizer.rate=0.001"),
            ("t1_t2", " optimizer.rate=0.001"),
        ]
    ]


def test_other_seeds_and_more_overrides(write) -> None:
    cells = expand(write(), "demo", "numerals", seeds=[3, 5], extra=["epochs=2"])
    assert [cell.seed for cell in cells] == [3] * 5 + [5] * 5
    assert all(cell.overrides[-1] == "epochs=2" for cell in cells)


def test_a_point_that_two_grids_share_is_one_cell(write) -> None:
    twice = STUDY.replace("      - method: [gpipe]\n", "      - method: [gpipe]\n      - method: [gpipe, t2]\n")
    cells = expand(write(twice), "demo", "digits", seeds=[0])
    assert [cell.method for cell in cells][:3] == ["gpipe", "t2", "t1"]


def test_values_are_written_as_hydra_reads_them() -> None:
    for value in (None, True, 3, 0.1, 2e-07, "sqrt", [0.5, 0.75], [1, 2], "it's a=b? ${c}"):
        tree = compose.compose([f"task.probe={text(value)}"])
        assert tree["task"]["probe"] == value


WRONG = {
    "about: a study": ("abuot: a study", 'has "abuot"', 'did you mean "about"'),
    "method: [gpipe]": ("method: gpipe", "grids[0].method is gpipe", "a list"),
    "- method: [gpipe]": ("- methods: [gpipe]", "grids[0] has no method"),
    "pipeline.stages: [5, null]": ("pipeline.stages: []", "grids[1].pipeline.stages", "at least one"),
    "exclude:\n      - {method: t1, pipeline.stages:": (
        "exclude:\n      - {method: t1, pipeline.stage:",
        'exclude[0] has "pipeline.stage"',
        'did you mean "pipeline.stages"',
    ),
    "demo:\n        digits": ("dmeo:\n        digits", 'scales has "dmeo"', 'did you mean "demo"'),
    "digits: {seeds: 2}": ("digit: {seeds: 2}", 'has "digit"', 'did you mean "digits"'),
    "{seeds: 2}": ("{seeds: 0}", "scales.demo.digits.seeds=0"),
    "seeds: [7],": ("", "scales.demo.numerals has no seeds"),
    "values: {optimizer.rate:": ("values: {optimizer.rat:", 'has "optimizer.rat"', "optimizer.rate"),
    "grids:": ("grids: [", "is not YAML"),
}


@pytest.mark.parametrize("right", WRONG)
def test_a_wrong_study_file_is_told_with_its_place(right: str, write, tmp_path: Path) -> None:
    wrong, *parts = WRONG[right]
    assert right in STUDY
    with pytest.raises(UserError) as caught:
        write(STUDY.replace(right, wrong, 1))
    for part in [*parts, str(tmp_path / "nothing.yaml")]:
        assert part in str(caught.value)


def test_a_place_that_a_study_does_not_have(write) -> None:
    study = write()
    with pytest.raises(UserError, match="does not run on task cifar10 at scale=demo; it has digits, numerals there"):
        expand(study, "demo", "cifar10")
    with pytest.raises(UserError, match="at scale=paper; it runs at scale=demo, and digits at scale=demo"):
        expand(study, "paper", "digits")


def test_names_of_studies(write, tmp_path: Path) -> None:
    write()
    write(name="nothing_more")
    assert find("nothing", tmp_path)[1] is None
    assert find("nothing_digits", tmp_path)[0].name == "nothing"
    assert find("nothing_digits", tmp_path)[1] == "digits"
    assert find("nothing_more_numerals", tmp_path)[0].name == "nothing_more"
    for wrong, told in {
        "nothng": 'did you mean "nothing"',
        "nothing_digit": 'did you mean "digits"',
        "nothin_digits": 'did you mean "nothing_digits"',
        "zzz": "there are: nothing, nothing_more",
    }.items():
        with pytest.raises(UserError) as caught:
            find(wrong, tmp_path)
        assert told in str(caught.value)


def test_every_study_that_figures_are_made_from_is_there_and_names_them() -> None:
    wanted = {entry.study for entry in registry.ENTRIES if entry.kind == "runs"}
    assert wanted <= set(names())
    for name in names():
        families = {entry.family for entry in registry.ENTRIES if entry.study == name}
        assert set(study_file.load(name).figures) == families


@pytest.mark.parametrize("name", names())
def test_the_cells_of_a_shipped_study_are_valid_and_distinct(name: str) -> None:
    study = study_file.load(name)
    for scale in study.scales():
        for task in study.places[scale]:
            cells = expand(study, scale, task)
            assert len({cell.overrides for cell in cells}) == len(cells)
            assert {cell.method for cell in cells} <= set(compose.options("method"))
            cfg = load(cells[-1].overrides)  # composing all of them would take minutes
            assert (cfg.task.name, cfg.scale, cfg.seed) == (task, scale, cells[-1].seed)
