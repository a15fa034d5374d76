"""Does a run that was killed, stopped or damaged go on bit for bit?"""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipemare_exp.errors import UserError
from pipemare_exp.experiment.config.load import load
from pipemare_exp.experiment.runs.folder import find_runs
from pipemare_exp.experiment.training import assemble
from pipemare_exp.experiment.training.session import train
from tests.experiment.tiny_training import TINY, assert_same_run, last_state, run_once

METHODS = {
    "gpipe": [],
    "hogwild_t1": ["method.lr_rescheduling.steps=10"],
    "pipedream": [],
    "t1_t2": ["method.lr_rescheduling.steps=10"],
    "pipemare": [
        "method.lr_rescheduling.steps=10",
        "method.sync_warmup.epochs=null",
        "method.sync_warmup.steps=4",
    ],
}


class Killed(BaseException):
    """Stands for SIGKILL within one process: nothing catches it, nothing is written after it."""


def kill_at(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    original = assemble.Emulator.step

    def dying(self, *args, **kwargs):
        if self.version == step:
            raise Killed
        return original(self, *args, **kwargs)

    monkeypatch.setattr(assemble.Emulator, "step", dying)


@pytest.mark.parametrize("method", METHODS)
def test_kill_and_resume_is_bitwise_the_undisturbed_run(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = [*TINY, f"method={method}", *METHODS[method], "max_steps=25"]  # an epoch ends at step 22
    whole, _ = run_once(overrides, tmp_path / "whole")
    assert whole.outcome == "finished"

    at = {"gpipe": 8, "hogwild_t1": 7, "pipedream": 5, "t1_t2": 4, "pipemare": 23}[method]  # 4 and 5: within the fill
    with monkeypatch.context() as patch, pytest.raises(Killed):
        kill_at(at, patch)
        run_once(overrides, tmp_path / "killed")
    (killed,) = find_runs(tmp_path / "killed")
    assert (killed.outcome, killed.result) == ("interrupted", None)

    resumed, said = run_once(overrides, tmp_path / "killed")
    at_checkpoint = 22 if at == 23 else at // 3 * 3
    assert f"resumed from step {at_checkpoint} of 25" in said
    assert resumed.summary["resumed_from"] == [at_checkpoint]
    assert_same_run(resumed.run, whole.run)


def test_a_damaged_last_checkpoint_costs_only_the_steps_since_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = [*TINY, "method=t1_t2", "max_steps=9"]
    whole, _ = run_once(overrides, tmp_path / "whole")
    with monkeypatch.context() as patch, pytest.raises(Killed):
        kill_at(8, patch)
        run_once(overrides, tmp_path / "killed")
    (killed,) = find_runs(tmp_path / "killed")
    os.truncate(killed.checkpoints / "last.pt", 1000)
    resumed, said = run_once(overrides, tmp_path / "killed")
    assert "damaged" in said and "resumed from step 3 of 9" in said
    assert_same_run(resumed.run, whole.run)

    (killed.path / "result.json").unlink()
    for name in ("last.pt", "previous.pt"):
        os.truncate(killed.checkpoints / name, 1000)

    def files() -> dict[str, bytes]:  # but the log, which has what was said
        return {path.name: path.read_bytes() for path in killed.path.glob("*.*") if path.suffix != ".log"}

    before = files()
    with pytest.raises(UserError, match="no checkpoint can be used"):
        run_once(overrides, tmp_path / "killed")
    assert files() == before


def test_lost_rows_are_noticed_and_written_again_from_the_checkpoint_before_them(tmp_path: Path) -> None:
    overrides = [*TINY, "method=t1_t2", "log_every=1", "max_steps=6"]
    whole, _ = run_once(overrides, tmp_path / "whole")
    cut, _ = run_once(overrides, tmp_path / "cut")
    lines = cut.run.metrics_file.read_bytes().splitlines(keepends=True)
    (cut.run.path / "result.json").unlink()
    cut.run.metrics_file.write_bytes(b"".join(lines[:4]))
    resumed, said = run_once(overrides, tmp_path / "cut")
    assert "metrics.jsonl has lost rows" in said and "resumed from step 3 of 6" in said
    assert_same_run(resumed.run, whole.run)

    (cut.run.path / "result.json").unlink()
    cut.run.metrics_file.write_bytes(b"")
    with pytest.raises(UserError, match="metrics.jsonl has lost rows.*move"):
        run_once(overrides, tmp_path / "cut")


def test_damaged_small_files_are_written_anew_on_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    overrides = [*TINY, "method=t1_t2", "max_steps=5"]
    with monkeypatch.context() as patch, pytest.raises(Killed):
        kill_at(4, patch)
        run_once(overrides, tmp_path)
    (run,) = find_runs(tmp_path)
    text = (run.path / "config.yaml").read_text()
    (run.path / "config.yaml").write_text(text[: text.index("tracking")])  # which is YAML, too
    (run.path / "meta.json").write_text("")
    (run.path / "overrides.json").write_text("{}")
    (run.path / "status.json").write_text("")
    done, said = run_once(overrides, tmp_path)
    assert done.outcome == "finished" and "resumed from step 3" in said
    assert [f"{name} is damaged" in said for name in ("config.yaml", "meta.json", "overrides.json")] == [True] * 3
    assert (run.path / "config.yaml").read_text() == text
    assert run.overrides == overrides and run.meta["config_hash"] == done.summary["config_hash"]


COMMAND = [sys.executable, "-m", "pipemare_exp", "train"]


def start_and_signal(overrides: list[str], runs: Path, after: int, number: int) -> tuple[int, str]:
    """Train in a process of its own, send it `number` once step `after` is logged; (exit code, output)."""
    process = subprocess.Popen(
        [*COMMAND, *overrides, "--runs", str(runs)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        if any(row["step"] >= after for run in find_runs(runs) for row in run.metrics("train")):
            process.send_signal(number)
            break
        time.sleep(0.01)
    output, _ = process.communicate(timeout=120)
    return process.returncode, output


def test_sigterm_then_sigkill_then_go_on_equals_the_undisturbed_run(tmp_path: Path) -> None:
    overrides = [*TINY, "method=pipemare", "max_steps=160", "log_every=2", "checkpoint.every_steps=20", "threads=1"]
    code, output = start_and_signal(overrides, tmp_path / "disturbed", 4, signal.SIGTERM)
    assert code == 143, output
    assert "interrupted at step" in output and "goes on" in output
    (run,) = find_runs(tmp_path / "disturbed")
    first = run.status["step"]
    assert run.outcome == "interrupted" and last_state(run)["step"] == first

    code, output = start_and_signal(overrides, tmp_path / "disturbed", first + 30, signal.SIGKILL)
    assert code == -signal.SIGKILL, output
    assert f"resumed from step {first} of 160" in output
    assert run.outcome == "interrupted"

    out = io.StringIO()
    resumed = train(load(overrides), overrides, runs=tmp_path / "disturbed", out=out)
    second = resumed.summary["resumed_from"][1]
    assert resumed.summary["resumed_from"][0] == first and second > first
    assert second % 20 == 0 or second % 22 == 0  # a periodic checkpoint, or one at an epoch's end
    whole = train(load(overrides), overrides, runs=tmp_path / "whole", out=out)
    assert_same_run(resumed.run, whole.run)
