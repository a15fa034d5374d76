"""A rank as a process: how its messages' thread is scheduled, and its memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

JOINED = """
import os, pathlib, sys, time
import torch.distributed as dist
from pipemare_exp.pipeline.processes import let_compute_first
dist.init_process_group("gloo", store=dist.FileStore(sys.argv[1], 1), rank=0, world_size=1)
while not (count := let_compute_first()):  # alone, nothing has waited for that thread to begin
    time.sleep(0.01)
print(count)
for task in pathlib.Path("/proc/self/task").glob("*"):
    print((task / "comm").read_text().strip(), os.sched_getscheduler(int(task.name)) == os.SCHED_BATCH)
dist.destroy_process_group()
"""

FAULTS = """
import resource, sys
import torch
from pipemare_exp.pipeline.processes import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
def pages():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for times in (5, 10):
    before = pages()
    for _ in range(times):
        torch.ones(16, 2**20)
print(pages() - before)
"""


def run(code: str, argument: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", code, argument], capture_output=True, text=True, check=True,
                          timeout=120, env={**os.environ, "OMP_NUM_THREADS": "1"})  # fmt: skip
    return done.stdout.split("\n")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="threads of /proc")
def test_only_the_thread_that_moves_messages_gives_way(tmp_path: Path) -> None:
    count, *threads = run(JOINED, str(tmp_path / "store"))
    batch = [line.split()[0] for line in threads if line.endswith("True")]
    assert int(count) == len(batch) >= 1 and set(batch) == {"gloo_tcp_loop"}
    assert any(line.startswith("python") and line.endswith("False") for line in threads)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc")
def test_memory_that_was_freed_is_not_asked_for_anew() -> None:
    """64 MB ten times: 163,840 pages of 4 kB (fewer where pages are larger), unless they are kept."""
    assert int(run(FAULTS, "keep")[0]) < 50 < 300 < int(run(FAULTS, "default")[0])
