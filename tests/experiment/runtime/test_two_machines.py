"""A pipeline over two machines: the emulator's bits; one machine dies; the run goes on with all ranks on the other."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.experiment.runtime.test_command import SETTINGS, emulated, pipemare, reached, rows, run, wait_for
from tests.experiment.runtime.two_machines import Machine, processes, two_machines, why_not
from tests.pipeline.runtime.runtime_groups import environment

__all__ = ["emulated"]

pytestmark = pytest.mark.slow
TIMEOUT = 20
"""engine.timeout: seconds after which a silent rank is asked."""


@pytest.fixture(scope="module", autouse=True)
def _allowed() -> None:
    if reason := why_not():
        pytest.skip(reason)


def started(machines: Sequence[Machine], runs: Path) -> list[subprocess.Popen[str]]:
    settings = [*SETTINGS, "engine=runtime", f"engine.timeout={TIMEOUT}"]
    arguments = pipemare(settings, runs)[1:]
    return [
        subprocess.Popen(
            machine.torchrun(2, arguments), env={**environment(), **machine.variables()}, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )
        for machine in machines
    ]  # fmt: skip


def test_four_ranks_on_two_machines_log_what_the_emulator_logs(emulated: list[dict], tmp_path: Path) -> None:
    with two_machines() as machines:
        both = started(machines, tmp_path)
        said = [process.communicate(timeout=900)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], "\n".join(said)
    assert rows(tmp_path) == emulated


def test_a_machine_that_dies_ends_the_run_which_goes_on_with_all_ranks_on_the_other(
    emulated: list[dict], tmp_path: Path
) -> None:
    with two_machines() as (first, second):
        both = started((first, second), tmp_path)
        wait_for(lambda: reached(tmp_path, 20))
        second.die()
        died = time.monotonic()
        said, _ = both[0].communicate(timeout=300)
        seconds = time.monotonic() - died
        assert both[0].returncode != 0
        assert not processes(first.space), "a rank was left on the machine that lives"
    lines = [line for line in said.splitlines() if "hangs: nothing from it" in line]
    assert lines, said
    print(f"\nafter {seconds:.0f} s: {lines[0]}")
    assert seconds < TIMEOUT + 5 + 90  # the question, its answer, and torchrun's own end
    done = run(pipemare([*SETTINGS, "engine=runtime", "engine.ranks=4"], tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "resumed from step" in done.stdout
    assert rows(tmp_path) == emulated
