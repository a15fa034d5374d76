"""`pipemare train engine=runtime`: the emulator's rows, resumed after a kill, one message for every failure."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.pipeline.runtime.runtime_groups import environment

SETTINGS = [
    "task=digits", "method=pipemare", "tracking=none", "pipeline.stages=4", "pipeline.microbatches=2", "max_steps=50",
    "method.sync_warmup.epochs=null", "method.sync_warmup.steps=12", "threads=1", "checkpoint.every_steps=5",
]  # fmt: skip
RUNTIME = ["engine=runtime", "engine.ranks=2"]


def pipemare(settings: Sequence[str], runs: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "pipemare_exp", "train", *settings, "--runs", str(runs), *options]


def run(command: list[str], timeout: float = 1200.0) -> subprocess.CompletedProcess:
    return subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=timeout)


@contextmanager
def started(command: list[str]) -> Iterator[subprocess.Popen]:
    process = subprocess.Popen(
        command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        yield process
    finally:
        process.kill()  # torchrun and the ranks end with it
        process.wait()


def rows(runs: Path) -> list[dict]:
    (path,) = runs.glob("*/metrics.jsonl")
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return [{key: value for key, value in row.items() if key != "seconds"} for row in found]


def ranks(runs: Path) -> dict[int, int]:
    """rank -> process, of the ranks that train under `runs`."""
    found = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            if str(runs).encode() not in words or b"pipemare_exp.tied" in words:
                continue
            variables = dict(v.split(b"=", 1) for v in (folder / "environ").read_bytes().split(b"\0") if b"=" in v)
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        if b"RANK" in variables:
            found[int(variables[b"RANK"])] = int(folder.name)
    return found


def processes(runs: Path) -> list[int]:
    """All processes, torchrun too, whose command line names `runs`."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if str(runs).encode() in (folder / "cmdline").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
    return found


def wait_for(what, timeout: float = 600.0) -> None:
    end = time.monotonic() + timeout
    while not what():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.05)


def reached(runs: Path, step: int) -> bool:
    return any(int(path.name.removeprefix("step-")) >= step for path in runs.glob("*/checkpoints/step-*"))


def may_unshare() -> bool:
    """Whether this user may make a name space of its own for network and name."""
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        return False
    return subprocess.run(["unshare", "-n", "-u", "true"], capture_output=True, timeout=60).returncode == 0


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    runs = tmp_path_factory.mktemp("emulated")
    done = run(pipemare(SETTINGS, runs))
    assert done.returncode == 0, done.stderr
    return rows(runs)


@pytest.mark.slow
def test_two_ranks_log_what_the_emulator_logs(emulated: list[dict], tmp_path: Path) -> None:
    done = run(pipemare([*SETTINGS, *RUNTIME], tmp_path, "--json"))
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["outcome"] == "finished" and result["step"] == 50
    assert rows(tmp_path) == emulated
    (folder,) = (path.parent for path in tmp_path.glob("*/runtime.json"))
    measured = json.loads((folder / "runtime.json").read_text())
    trace = json.loads((folder / "trace.json").read_text())
    for rank in measured["ranks"]:
        events = [e for e in trace["traceEvents"] if e["ph"] == "X" and e["pid"] == rank["rank"]]
        for name, seconds in rank["seconds"].items():
            assert sum(e["dur"] for e in events if e["cat"] == name) == pytest.approx(seconds * 1e6, rel=1e-6, abs=1e-3)
        assert sum(e["cat"] == "forward" for e in events) == 50 * 2 * 2
    again = run(pipemare([*SETTINGS, *RUNTIME], tmp_path))
    assert again.returncode == 0 and "nothing to do" in again.stdout
    scored = run([sys.executable, "-m", "pipemare_exp", "eval", str(folder), "--json"])
    assert json.loads(scored.stdout)["accuracy"] == result["last"]


@pytest.mark.slow
def test_a_killed_rank_ends_all_and_the_same_command_goes_on(emulated: list[dict], tmp_path: Path) -> None:
    command = pipemare([*SETTINGS, *RUNTIME], tmp_path)
    with started(command) as process:
        wait_for(lambda: reached(tmp_path, 25))
        os.kill(ranks(tmp_path)[1], signal.SIGKILL)
        said, errors = process.communicate(timeout=300)
        assert process.returncode == 1
        assert (said + errors).count("rank 1 (stages 2-3) is gone: killed or crashed; seen by rank 0 (stages 0-1)") == 1
        wait_for(lambda: not processes(tmp_path), timeout=60)
    done = run(command)
    assert done.returncode == 0, done.stderr
    assert "resumed from step" in done.stdout
    assert rows(tmp_path) == emulated


@pytest.mark.slow
def test_a_rank_that_is_stopped_is_given_up_and_killed(tmp_path: Path) -> None:
    with started(pipemare([*SETTINGS, *RUNTIME, "engine.timeout=20"], tmp_path)) as process:
        wait_for(lambda: reached(tmp_path, 15))
        os.kill(ranks(tmp_path)[1], signal.SIGSTOP)
        said, errors = process.communicate(timeout=300)
        assert process.returncode == 1
        assert "rank 1 (stages 2-3) hangs: nothing from it for 20 s" in said + errors
        wait_for(lambda: not processes(tmp_path), timeout=60)


@pytest.mark.slow
def test_a_stop_request_saves_and_goes_on(emulated: list[dict], tmp_path: Path) -> None:
    settings = [*SETTINGS[:-1], "checkpoint.every_steps=1000", *RUNTIME]
    with started(pipemare(settings, tmp_path)) as process:
        wait_for(lambda: any(tmp_path.glob("*/metrics.jsonl")) and len(rows(tmp_path)) > 2)
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=300)
    if process.returncode == 0:
        pytest.skip("the run was through before the signal came")
    assert process.returncode == 128 + signal.SIGTERM
    assert "interrupted at step" in said
    assert run(pipemare(settings, tmp_path)).returncode == 0
    assert rows(tmp_path) == emulated


@pytest.mark.slow
def test_divergence_is_an_outcome_everywhere(tmp_path: Path) -> None:
    settings = [*SETTINGS, "optimizer.rate=1e6", "schedule=constant"]
    for name, more in (("emulator", []), ("runtime", RUNTIME)):
        done = run(pipemare([*settings, *more], tmp_path / name, "--json"))
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["outcome"] == "diverged"
    assert rows(tmp_path / "runtime") == rows(tmp_path / "emulator")


@pytest.mark.slow
def test_torchrun_itself(emulated: list[dict], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3"]
    done = run([*command, *pipemare([*SETTINGS, "engine=runtime"], tmp_path)[1:]])
    assert done.returncode == 0, done.stderr
    assert rows(tmp_path) == emulated


@pytest.mark.slow
def test_a_run_goes_on_with_another_number_of_ranks(emulated: list[dict], tmp_path: Path) -> None:
    """Four ranks, stopped in the middle; two go on, stopped again; three bring it to its end."""
    for count, step in ((4, 10), (2, 25)):
        with started(pipemare([*SETTINGS, "engine=runtime", f"engine.ranks={count}"], tmp_path)) as process:
            wait_for(lambda step=step: reached(tmp_path, step) or process.poll() is not None)
            process.send_signal(signal.SIGTERM)
            said, errors = process.communicate(timeout=300)
        assert process.returncode == 128 + signal.SIGTERM, said + errors
    done = run(pipemare([*SETTINGS, "engine=runtime", "engine.ranks=3"], tmp_path))
    assert done.returncode == 0, done.stderr
    (meta,) = tmp_path.glob("*/meta.json")
    resumed = [session["resumed_from"] for session in json.loads(meta.read_text())["sessions"]]
    assert len(resumed) == 3 and 10 <= resumed[1] < resumed[2] < 50
    assert rows(tmp_path) == emulated


@pytest.mark.slow
def test_restarted_by_torchrun(emulated: list[dict], tmp_path: Path) -> None:
    with started(pipemare([*SETTINGS, *RUNTIME, "engine.max_restarts=1"], tmp_path)) as process:
        wait_for(lambda: reached(tmp_path, 20))
        os.kill(ranks(tmp_path)[0], signal.SIGKILL)
        said, errors = process.communicate(timeout=900)
        assert process.returncode == 0, said + errors
    assert "resumed from step" in said
    assert rows(tmp_path) == emulated


@pytest.mark.slow
def test_a_second_interrupt_ends_all_at_once(tmp_path: Path) -> None:
    with started(pipemare([*SETTINGS, *RUNTIME, "max_steps=5000"], tmp_path)) as process:
        wait_for(lambda: reached(tmp_path, 10))
        # Stopped ranks would not hear of the first one; torchrun would wait for them for half a minute.
        for rank in ranks(tmp_path).values():
            os.kill(rank, signal.SIGSTOP)
        process.send_signal(signal.SIGINT)
        time.sleep(1.0)
        assert process.poll() is None
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        assert time.monotonic() - began < 5.0
        assert process.returncode == 130 and "interrupted at once" in errors
        wait_for(lambda: not processes(tmp_path), timeout=10)


@pytest.mark.slow
def test_a_rank_killed_at_the_start_is_named(tmp_path: Path) -> None:
    with started(pipemare([*SETTINGS, *RUNTIME], tmp_path)) as process:
        wait_for(lambda: len(ranks(tmp_path)) == 2)
        victim = ranks(tmp_path)[1]
        os.kill(victim, signal.SIGKILL)
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    assert f"torchrun: rank 1 (process {victim}) was killed by SIGKILL" in errors, errors
    (kept,) = re.findall(r"messages are in (.*)", errors)
    assert Path(kept).is_file()
    Path(kept).unlink()


@pytest.mark.slow
@pytest.mark.parametrize("begun", [0, 1, 2])
def test_no_rank_outlives_a_command_that_was_killed_while_ranks_import(begun: int, tmp_path: Path) -> None:
    """SIGKILL when so many ranks have begun, which takes ranks seconds of imports before they train."""
    with started(pipemare([*SETTINGS, *RUNTIME], tmp_path)) as process:
        wait_for(lambda: len(ranks(tmp_path)) >= begun and len(processes(tmp_path)) > 1)
        process.kill()
        process.wait()
        wait_for(lambda: not processes(tmp_path), timeout=20)


@pytest.mark.slow
@pytest.mark.skipif(not may_unshare(), reason="this user may not make name spaces (unshare -n -u)")
def test_a_machine_whose_name_does_not_resolve(emulated: list[dict], tmp_path: Path) -> None:
    script = 'hostname nowhere.invalid; ip link set lo up; exec "$@"'
    command = ["unshare", "-n", "-u", "bash", "-c", script, "bash", *pipemare([*SETTINGS, *RUNTIME], tmp_path)]
    done = run(command, timeout=400)
    assert done.returncode == 0, done.stderr
    assert rows(tmp_path) == emulated


@pytest.mark.slow
def test_nothing_is_left_in_the_folder_of_temporary_files(tmp_path: Path) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    done = subprocess.run(
        pipemare([*SETTINGS, *RUNTIME, "max_steps=3"], tmp_path / "runs"), capture_output=True, text=True, timeout=400,
        env={**environment(), "TMPDIR": str(temporary)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [path.name for path in temporary.iterdir() if path.name.startswith(("torchelastic", "pipemare"))] == []


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (["engine=runtime"], "engine=runtime needs engine.ranks=R"),
        (["engine.ranks=2"], "engine.ranks with engine=emulator"),
        ([*RUNTIME, "optimizer.clip=global", "optimizer.clip_norm=1"], "stages update at different moments"),
        ([*RUNTIME, "pipeline.split=2"], "pipeline.split=2 with engine=runtime"),
        ([*RUNTIME, "engine.flush=1f1b"], "engine.flush=1f1b with method.name=pipemare"),
        (["engine=runtim"], 'did you mean "runtime"'),
    ],
)
def test_mistakes_are_told_before_anything_starts(
    settings: list[str], text: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from pipemare_exp import cli

    assert cli.main(["train", "task=digits", "method=pipemare", *settings, "--runs", str(tmp_path)]) == 2
    assert text in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_mistakes_that_need_the_model_are_told_once(tmp_path: Path) -> None:
    settings = ["task=digits", "method=pipemare", "pipeline.stages=3", "engine=runtime", "engine.ranks=4"]
    done = run(pipemare(settings, tmp_path))
    assert done.returncode == 2
    assert done.stderr.count("engine.ranks=4 with 3 stages: a rank holds at least one stage") == 1
    assert "Traceback" not in done.stderr
