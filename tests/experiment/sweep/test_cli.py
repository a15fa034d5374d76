"""Wrong words on the command line of `pipemare sweep`, its lists, its dry run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipemare_exp import cli
from pipemare_exp.experiment.runs.folder import Run

WRONG = {
    "": ["which study?", "ablation"],
    "ablatoin": ['no study "ablatoin"', 'did you mean "ablation"'],
    "ablation_digit": ['no task "digit"', 'did you mean "digits"'],
    "ablation_digits scale=demoo": ["scale=demoo; allowed: demo, laptop, paper", 'did you mean "demo"'],
    "ablation_digits scale=paper": ["does not run on task digits at scale=paper", "digits at scale=demo"],
    "ablation task=digts": ["task=digts; allowed: digits", 'did you mean "digits"'],
    "ablation_digits task=numerals": ["ablation_digits is of task digits", "ablation_numerals"],
    "ablation_digits seeds=-1": ["seeds=-1", "[3,4]"],
    "ablation_digits seeds=many": ["seeds=many"],
    "ablation_digits seed=3": ["seed=3", "use seeds="],
    "ablation_digits experiment=digits/t1": ["task=digits method=t1"],
    "ablation_digits jobs=0": ["jobs=0", "from 1 to 10000"],
    "ablation_digits jobs=²": ["jobs=²", "whole number"],
    "ablation_digits launcher=joblib launcher._target_=os.system": ["launcher._target_", "no setting of a launcher"],
    "ablation_digits jobs=2 launcher=basic": ["only fork and joblib have it"],
    "ablation_digits launcher=jobli": ["launcher=jobli", "basic, fork, joblib", 'did you mean "joblib"'],
    "ablation_digits launcher=joblib launcher.n_job=2": ["launcher=joblib", "n_job"],
    "ablation_digits launcher=fork launcher.n_job=2": ["launcher=fork has no setting n_job; it has n_jobs"],
    "ablation_digits epochs=0": ["epochs=0", "at least 1"],
    "ablation_digits optimizer.rat=1": ['"optimizer.rat"', 'did you mean "optimizer.rate"'],
    "ablation_digits engine=runtime": ["engine=runtime in a sweep", "pipemare train"],
    "ablation_digits --json": ["--dry-run"],
}


@pytest.mark.parametrize("words", WRONG)
def test_a_wrong_word_is_told_in_two_lines_with_the_remedy(words: str, tmp_path: Path, capsys) -> None:
    small = ["max_steps=1", "model.width=2", "tracking=none", "seeds=1"] if "launcher=" in words else []
    assert cli.main(["sweep", *words.split(), *small, "--runs", str(tmp_path)]) == 2
    out, err = capsys.readouterr()
    for part in WRONG[words]:
        assert part in err
    assert len(err.splitlines()) <= 2
    assert not list(tmp_path.glob("digits*"))


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path, capsys) -> None:
    (tmp_path / "file").write_text("")
    words = ["end_to_end_digits", "seeds=1", "max_steps=1", "model.width=2", "tracking=none"]
    assert cli.main(["sweep", *words, "--runs", str(tmp_path / "file")]) == 2
    assert "cannot write the folder of runs" in capsys.readouterr().err


def test_the_list_names_every_study_with_its_places_and_figures(capsys) -> None:
    assert cli.main(["sweep", "--list"]) == 0
    text = capsys.readouterr().out
    assert "ablation: what T1, T2 and T3 do" in text
    assert "scale=demo: digits 21, numerals 7, docstrings 7 cells" in text
    assert cli.main(["sweep", "--list", "--json"]) == 0
    studies = {one["study"]: one for one in json.loads(capsys.readouterr().out)}
    assert studies["ablation"]["cells"]["demo"] == {"digits": 21, "numerals": 7, "docstrings": 7}
    assert studies["ablation"]["figures"] == ["ablation", "table3"]


def test_a_dry_run_shows_every_state_and_the_time_left_and_makes_nothing(tmp_path: Path, capsys) -> None:
    words = ["sweep", "ablation_digits", "seeds=1", "--dry-run", "--runs", str(tmp_path)]
    assert cli.main([*words, "--json"]) == 0
    cells = json.loads(capsys.readouterr().out)
    assert cells["seconds_left"] is None
    assert {one["state"] for one in cells["cells"]} == {"missing"} and not list(tmp_path.iterdir())
    runs = {one["method"]: Run(tmp_path / one["run"]) for one in cells["cells"]}
    for name in ("gpipe", "pipedream", "t1", "t2"):
        runs[name].create()
    done = {"step": 550, "metric": "accuracy", "best": 99.5, "last": 99.2, "seconds": 55.0}
    for name, outcome in (("gpipe", "finished"), ("pipedream", "diverged")):
        (runs[name].path / "result.json").write_text(json.dumps({"outcome": outcome, **done}))
    runs["t1"].set_status("failed", 3, error="OSError: disk full")
    runs["t2"].set_status("interrupted", 275)
    runs["t2"].append([{"kind": "train", "step": 275}])
    runs["async"].create()
    with runs["async"].lock():
        assert cli.main(words) == 0
    text = capsys.readouterr().out
    lines = {line.split(",")[0].split()[1]: " ".join(line.split()[4:]) for line in text.splitlines()[:7]}
    assert lines == {
        "gpipe": "done, accuracy 99.2 % (best 99.5), 55 s",
        "pipedream": "diverged at step 550, accuracy 99.2 % (best 99.5), 55 s",
        "async": "running at step 0 of 550",
        "t1": "failed: OSError: disk full",
        "t2": "interrupted at step 275 of 550",
        "t1_t2": "missing",
        "pipemare": "missing",
    }
    assert "7 cells: 1 done, 1 diverged, 1 running, 1 failed, 1 interrupted, 2 missing" in text
    assert "time left: 3 min 12 s" in text  # 3.5 of 550 steps, 0.1 s a step
