"""A rank that raises, hangs, or is stopped ends the others in bounded time, with one line that names the place."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from pipemare_exp import tied
from tests.pipeline.runtime.runtime_groups import HERE, environment


def end_of(fault: str, folder: Path, timeout: float) -> tuple[str, float]:
    """(what rank 0 says last, seconds from the start of both processes to its end)."""
    started = [
        subprocess.Popen(
            tied.command(f"{HERE}.runtime_fault", str(rank), "2", str(folder / "store"), fault, str(timeout)),
            env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    began = time.monotonic()
    try:
        said, errors = started[0].communicate(timeout=600)
        lines = said.strip().splitlines()
        assert lines, errors
        if fault != "stop":
            assert started[1].wait(timeout=30) == 1, "the rank that failed is still there"
    finally:
        for process in started:
            process.kill()
            process.wait()
    return lines[-1], time.monotonic() - began


def test_an_exception_is_told_with_rank_stage_step_and_cause(tmp_path: Path) -> None:
    text, _ = end_of("raise", tmp_path, 30.0)
    assert text == "rank 1 (stage 1) failed at F12 of stage 1 (step 7): ValueError: injected"


@pytest.mark.slow
def test_an_action_that_does_not_end_is_given_up_by_its_own_rank(tmp_path: Path) -> None:
    text, _ = end_of("spin", tmp_path, 20.0)
    assert text == "rank 1 (stage 1) hangs: F12 of stage 1 (step 7) has not ended for 20 s"


@pytest.mark.slow
def test_a_process_that_answers_nothing_is_given_up_by_its_neighbour(tmp_path: Path) -> None:
    text, _ = end_of("stop", tmp_path, 20.0)
    assert text.startswith("rank 1 (stage 1) hangs: nothing from it for 20 s and no answer for 5 s more; rank 0 (stage")
    assert "waits for gradients at B" in text


@pytest.mark.slow
def test_ranks_that_wait_for_each_other_end(tmp_path: Path) -> None:
    text, seconds = end_of("lose", tmp_path, 5.0)
    assert text.startswith("ranks 0, 1 wait for each other; rank ")
    assert seconds < 90.0
