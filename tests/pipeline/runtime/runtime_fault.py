"""One rank of two, of which rank 1 goes wrong in its seventh step.

python runtime_fault.py RANK RANKS STORE raise|spin|stop TIMEOUT
"""

from __future__ import annotations

import os
import signal
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from pipemare_exp.experiment.runtime.worker import leave, watch_actions
from pipemare_exp.pipeline.runtime.processes import watch_for_parent
from tests.pipeline.runtime.runtime_cases import Case
from tests.pipeline.runtime.runtime_rank import make


def main() -> None:
    rank, ranks, store, fault, timeout = sys.argv[1:]
    torch.set_num_threads(1)
    watch_for_parent()
    store = dist.FileStore(store, int(ranks))
    dist.init_process_group("gloo", store=store, rank=int(rank), world_size=2, timeout=timedelta(seconds=60))
    calls = []

    def faulty(loss):
        def run(model, microbatch):
            calls.append(microbatch)
            if rank == "1" and len(calls) == 13:
                if fault == "raise":
                    raise ValueError("injected")
                if fault == "stop":
                    os.kill(os.getpid(), signal.SIGSTOP)
                time.sleep(1000.0)
            return loss(model, microbatch)

        return run

    case = Case("async", microbatches=2, model="transformer", steps=100)
    runtime = make(case, loss=faulty, timeout=float(timeout))
    watch_actions(lambda: runtime, float(timeout))
    try:
        while runtime.advance():
            pass
    except Exception as error:
        leave(runtime, error)
        print(f"{time.monotonic()}\n{error}", flush=True)
        os._exit(1)


if __name__ == "__main__":
    main()
