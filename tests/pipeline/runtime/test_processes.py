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
from pipemare_exp.pipeline.runtime.processes import let_compute_first
dist.init_process_group("gloo", store=dist.FileStore(sys.argv[1], 1), rank=0, world_size=1)
while not (count := let_compute_first()):  # alone, nothing has waited for that thread to begin
    time.sleep(0.01)
print(count)
for task in pathlib.Path("/proc/self/task").glob("*"):
    print((task / "comm").read_text().strip(), os.sched_getscheduler(int(task.name)) == os.SCHED_BATCH)
dist.destroy_process_group()
"""

FREED = """
import sys
import torch
from pipemare_exp.pipeline.runtime.processes import keep_freed_memory
def heap():
    found = [line.split()[0].split("-") for line in open("/proc/self/maps") if line.rstrip().endswith("[heap]")]
    return sum(int(end, 16) - int(begin, 16) for begin, end in found)
if sys.argv[1] == "keep":
    assert keep_freed_memory()
before = heap()
block = torch.ones(64, 2**20)
del block
print(heap() - before)
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
def test_memory_that_was_freed_stays_with_the_process() -> None:
    """256 MB, which by default are a mapping of their own that goes back to the system."""
    assert int(run(FREED, "default")[0]) < 2**27 < int(run(FREED, "keep")[0])
