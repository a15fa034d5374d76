"""Sweeps that really train: idempotent, undisturbed by a failing cell, resumed after a kill, stopped by Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipemare_exp import cli
from pipemare_exp.experiment.runs.folder import Run, find_runs
from pipemare_exp.experiment.sweep import fork_server
from pipemare_exp.experiment.sweep.plan import Planned
from pipemare_exp.experiment.sweep.run import Sweep
from pipemare_exp.experiment.sweep.study import Cell

TINY = ["tracking=none", "model.width=2", "pipeline.stages=6", "pipeline.microbatches=2", "checkpoint.every_steps=3"]
QUICK = [*TINY, "max_steps=3", "seeds=1"]


def sweep(*words: str, runs: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = cli.main(["sweep", *words, "--runs", str(runs)])
    streams = capsys.readouterr()
    return code, streams.out + streams.err


def states(runs: Path) -> dict[str, str]:
    return {run.name.split("-demo-")[0]: run.outcome for run in find_runs(runs)}


def sessions(runs: Path) -> dict[str, int]:
    return {run.name: len(run.meta["sessions"]) for run in find_runs(runs)}


def test_a_sweep_trains_its_cells_as_train_would_and_then_has_nothing_to_do(tmp_path, capsys) -> None:
    code, text = sweep("end_to_end_digits", *QUICK, runs=tmp_path, capsys=capsys)
    assert code == 0
    assert states(tmp_path) == dict.fromkeys(["digits-gpipe", "digits-pipedream", "digits-pipemare"], "finished")
    assert "3 cells: 3 done" in text and "pipemare figures metric_over_epochs_digits" in text
    before = sessions(tmp_path)
    run = next(run for run in find_runs(tmp_path) if "pipemare" in run.name)
    assert run.overrides == ["task=digits", "method=pipemare", "scale=demo", "seed=0", *QUICK[:-1]]
    assert run.meta["command"] == f"pipemare train {' '.join(run.overrides)}"
    assert cli.main(["train", *run.overrides, "--runs", str(tmp_path)]) == 0
    assert "nothing to do" in capsys.readouterr().out
    code, text = sweep("end_to_end_digits", *QUICK, runs=tmp_path, capsys=capsys)
    assert (code, sessions(tmp_path)) == (0, before)
    # A cell that a single training made is no cell to do, and the other way round.
    code, text = sweep("ablation_digits", *QUICK, "--dry-run", "--json", runs=tmp_path, capsys=capsys)
    found = {one["method"]: one["state"] for one in json.loads(text)["cells"]}
    assert found == dict.fromkeys(["gpipe", "pipedream", "pipemare"], "done") | dict.fromkeys(
        ["async", "t1", "t2", "t1_t2"], "missing"
    )


def test_a_failing_cell_stops_no_other_is_shown_at_the_end_and_not_tried_again_unasked(tmp_path, capsys) -> None:
    code, text = sweep("end_to_end_digits", *QUICK, "--dry-run", "--json", runs=tmp_path, capsys=capsys)
    names = {one["method"]: one["run"] for one in json.loads(text)["cells"]}
    # pipedream's evaluations have no place to go: an error inside the training
    (tmp_path / names["pipedream"] / "metrics.jsonl").mkdir(parents=True)
    (tmp_path / names["pipedream"] / "status.json").write_text('{"state": "interrupted", "step": 0}')
    code, text = sweep("end_to_end_digits", *QUICK, runs=tmp_path, capsys=capsys)
    assert code == 1
    assert "3 cells: 2 done, 1 failed" in text
    assert f"FAILED digits pipedream, seed 0: cannot write in {tmp_path / names['pipedream']}: Is a directory" in text
    assert f"pipemare train task=digits method=pipedream scale=demo seed=0 {' '.join(QUICK[:-1])}" in text
    assert "IsADirectoryError" in (tmp_path / names["pipedream"] / "error.txt").read_text()
    (tmp_path / names["pipedream"] / "metrics.jsonl").rmdir()
    code, text = sweep("end_to_end_digits", *QUICK, runs=tmp_path, capsys=capsys)
    assert code == 1 and "FAILED digits pipedream" in text
    code, text = sweep("end_to_end_digits", *QUICK, "--quiet", runs=tmp_path, capsys=capsys)
    assert code == 1 and text.startswith("FAILED digits pipedream")
    code, text = sweep("end_to_end_digits", *QUICK, "--retry-failed", "--quiet", runs=tmp_path, capsys=capsys)
    assert (code, text) == (0, "") and set(states(tmp_path).values()) == {"finished"}


def test_a_cell_that_is_refused_before_it_trains_stops_no_other(tmp_path, capsys) -> None:
    words = ["recompute_digits", "max_steps=2", "seeds=1", "tracking=none", "model.width=2", "pipeline.stages=3"]
    code, text = sweep(*words, runs=tmp_path, capsys=capsys)
    assert code == 1
    assert "6 cells: 4 done, 2 failed" in text  # sqrt is 2 of 3 stages: one run with S = 2
    assert text.count("pipeline.recompute=4, but the pipeline has only 3 stages") >= 2


def test_a_study_over_all_its_tasks_composes_every_job_in_one_process(tmp_path, capsys) -> None:
    """fairseq, which numerals imports, would leave names in Hydra's store that break the next composition."""
    words = ["scale=demo", "seeds=1", "max_steps=1", "tracking=none", "data.validation=1", "jobs=1"]
    small = ["end_to_end", *words, "evaluation.sentences=2", "pipeline.microbatches=2"]
    code, text = sweep(*small, runs=tmp_path, capsys=capsys)
    assert code == 0, text
    assert states(tmp_path) == {
        f"{task}-{method}": "finished"
        for task in ("digits", "numerals", "docstrings")
        for method in ("gpipe", "pipedream", "pipemare")
    }


def test_side_by_side_trainings_take_one_thread_each(tmp_path, capsys, monkeypatch) -> None:
    """Whatever the environment offers: two of more threads on the same cores are many times slower."""
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    code, text = sweep("end_to_end_digits", *TINY, "max_steps=1", "seeds=1", "jobs=2", runs=tmp_path, capsys=capsys)
    assert code == 0, text
    runs = find_runs(tmp_path)
    assert len(runs) > 1 and {run.meta["threads"] for run in runs} == {1}
    assert os.environ["OMP_NUM_THREADS"] == "4"


def command(runs: Path, *words: str) -> list[str]:
    return [sys.executable, "-m", "pipemare_exp", "sweep", "end_to_end_digits", *TINY, *words, "--runs", str(runs)]


def begin(runs: Path, *words: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).resolve().parents[3])}
    return subprocess.Popen(
        command(runs, *words), env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )


def wait_for_steps(runs: Path, count: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        if sum(len(run.metrics("train")) for run in find_runs(runs)) >= count:
            return
        assert process.poll() is None, process.stdout.read().decode()
        time.sleep(0.1)
    raise AssertionError("no training began in time")


def numbers(runs: Path) -> dict[str, list[dict]]:
    return {
        run.name: [{key: value for key, value in row.items() if key != "seconds"} for row in run.metrics()]
        for run in find_runs(runs)
    }


LONG = ["seeds=1", "max_steps=60", "log_every=1", "threads=1"]


def test_after_a_kill_of_the_whole_sweep_the_same_command_completes_it_bit_for_bit(tmp_path, capsys) -> None:
    process = begin(tmp_path / "killed", *LONG, "jobs=2")
    wait_for_steps(tmp_path / "killed", 12, process)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    time.sleep(1.0)  # joblib's workers have groups of their own: they notice that their sweep is gone
    assert "finished" not in states(tmp_path / "killed").values()
    code, text = sweep("end_to_end_digits", *TINY, *LONG, runs=tmp_path / "killed", capsys=capsys)
    assert code == 0, text
    resumed = [run for run in find_runs(tmp_path / "killed") if run.result["resumed_from"]]
    assert resumed and max(run.result["resumed_from"][0] for run in resumed) > 0
    assert sweep("end_to_end_digits", *TINY, *LONG, runs=tmp_path / "whole", capsys=capsys)[0] == 0
    assert numbers(tmp_path / "killed") == numbers(tmp_path / "whole")


def training_now(runs: Path) -> Run:
    """A run that some process has trained a few steps of and is still at."""
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        for run in find_runs(runs):
            if run.is_locked() and len(run.metrics("train")) >= 3:
                return run
        time.sleep(0.05)
    raise AssertionError("no training began in time")


@pytest.mark.parametrize(
    ("launcher", "number"), [("launcher=fork", signal.SIGUSR1), ("launcher=joblib", signal.SIGTERM)]
)
def test_a_signal_to_one_training_ends_that_one_with_a_checkpoint_and_no_other(launcher, number, tmp_path) -> None:
    """What a scheduler's pre-emption or a watch over memory does."""
    if "fork" in launcher and not fork_server.AVAILABLE:
        pytest.skip("forks of a server: on Linux")
    process = begin(tmp_path, "seeds=1", "max_steps=100", "log_every=1", launcher, "jobs=2")
    hit = training_now(tmp_path)
    os.kill(hit.status["pid"], number)
    text = process.communicate(timeout=240)[0].decode()
    assert process.returncode == 1, text
    assert "3 cells: 2 done, 1 interrupted" in text and "the same command goes on with them" in text
    outcomes = {run.name: run.outcome for run in find_runs(tmp_path)}
    assert outcomes.pop(hit.name) == "interrupted" and (hit.checkpoints / "last.pt").is_file()
    assert list(outcomes.values()) == ["finished", "finished"]


@pytest.mark.parametrize(("launcher", "number"), [("launcher=basic", signal.SIGHUP), ("jobs=2", signal.SIGTERM)])
def test_a_signal_to_the_sweep_stops_it_with_every_cell_resumable(launcher, number, tmp_path) -> None:
    process = begin(tmp_path, "seeds=1", "log_every=1", launcher)
    training_now(tmp_path)
    process.send_signal(number)
    text = process.communicate(timeout=120)[0].decode()
    assert process.returncode == 128 + number, text
    begun = [run for run in find_runs(tmp_path) if run.status]
    assert begun and {run.outcome for run in begun} == {"interrupted"}
    assert all((run.checkpoints / "last.pt").is_file() for run in begun)


@pytest.mark.parametrize("launcher", ["launcher=basic", "launcher=joblib", "jobs=2"])
def test_ctrl_c_leaves_every_cell_resumable(launcher: str, tmp_path: Path) -> None:
    process = begin(tmp_path, "seeds=1", "log_every=1", launcher)
    wait_for_steps(tmp_path, 5, process)
    os.killpg(process.pid, signal.SIGINT)
    text = process.communicate(timeout=120)[0].decode()
    assert process.returncode == 130, text
    assert "stopped; every cell keeps its checkpoint" in text
    begun = find_runs(tmp_path)
    assert {run.outcome for run in begun} == {"interrupted"}
    assert all((run.checkpoints / "last.pt").is_file() for run in begun)
    assert not list((tmp_path / ".sweep").glob("stop-*"))


def test_a_stop_that_a_training_took_is_heeded_however_soon_the_launcher_returns(tmp_path: Path, monkeypatch) -> None:
    """Once a sweep said that it was through: the training had taken the signal, and the launcher returned first."""
    one = Planned(Cell("digits", "demo", "a", 0, (), ("a",)), Run(tmp_path / "a"), 10)

    def multirun(self: Sweep, batch) -> list[None]:
        Path(batch.stop_file).write_text(str(int(signal.SIGTERM)))
        return [None]

    monkeypatch.setattr(Sweep, "_multirun", multirun)
    sweep_of_one = Sweep([one], tmp_path, "basic", {})
    monkeypatch.setattr(sweep_of_one, "_leave_when_idle", lambda ended: None)
    assert sweep_of_one.run() == signal.SIGTERM
    assert not sweep_of_one.stop_file.exists()


def test_a_worker_that_dies_costs_its_own_cell_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fake launcher whose workers die of one of the cells, as for lack of memory."""
    from concurrent.futures.process import BrokenProcessPool

    cells = [Cell("digits", "demo", name, 0, (), (name,)) for name in ("a", "deadly", "b", "c")]
    planned = [Planned(cell, Run(tmp_path / cell.method), 10) for cell in cells]
    launched = []

    def multirun(self: Sweep, batch) -> list[None]:
        names = [overrides[0] for overrides in batch.overrides]
        launched.append(names)
        for path in map(Run, batch.runs):
            path.create()
            path.set_status("running", 4)
            if path.name == "deadly":
                raise BrokenProcessPool("a worker died")
            done = {"outcome": "finished", "step": 10, "metric": "accuracy", "best": 1, "last": 1, "seconds": 1}
            (path.path / "result.json").write_text(json.dumps(done))
        return [None] * len(names)

    monkeypatch.setattr(Sweep, "_multirun", multirun)
    assert Sweep(planned, tmp_path, "joblib", {}).run() is None
    assert launched == [["a", "deadly", "b", "c"], ["deadly"], ["b", "c"]]
    assert [one.state for one in planned] == ["done", "failed", "done", "done"]
    assert "died twice" in planned[1].error


@pytest.mark.parametrize("launcher", ["basic", "joblib", "fork"])
def test_a_folder_of_runs_may_have_any_name(launcher: str, tmp_path, capsys) -> None:
    runs = tmp_path / "it's = all, ${here}?"
    code, text = sweep("end_to_end_digits", *QUICK, f"launcher={launcher}", runs=runs, capsys=capsys)
    assert code == 0, text
    assert set(states(runs).values()) == {"finished"}
    assert [path.name for path in tmp_path.iterdir()] == [runs.name]


def test_submitit_composes_and_says_what_it_lacks(tmp_path, capsys) -> None:
    words = ["launcher=submitit_slurm", "launcher.partition=gpu", "launcher.timeout_min=600"]
    code, text = sweep("end_to_end_digits", *QUICK, *words, runs=tmp_path, capsys=capsys)
    if "srun" not in text:
        pytest.skip("slurm is here: a test must not use it")
    assert code == 2
    assert "launcher=submitit_slurm gave up" in text
