"""One rank of two, of which rank 1 goes wrong in its seventh step.

python -m pipemare_exp.tied PARENT tests.pipeline.runtime.runtime_fault RANK RANKS STORE raise|spin|stop|lose TIMEOUT
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
from pipemare_exp.pipeline.runtime.messages import Kind, Message
from pipemare_exp.pipeline.runtime.rank import Runtime
from tests.pipeline.runtime.runtime_cases import Case
from tests.pipeline.runtime.runtime_rank import make


def lose_a_gradient(runtime: Runtime) -> None:
    """Never send the gradient of microbatch 12, for which the stage before waits, and then this one for it."""
    send = runtime.transport.send

    def losing(peer: int, message: Message) -> None:
        if (message.kind, message.index) != (Kind.BACKWARD, 12):
            send(peer, message)

    runtime.transport.send = losing  # type: ignore[method-assign]


def main() -> None:
    rank, ranks, store, fault, timeout = sys.argv[1:]
    torch.set_num_threads(1)
    store = dist.FileStore(store, int(ranks))
    dist.init_process_group("gloo", store=store, rank=int(rank), world_size=2, timeout=timedelta(seconds=60))
    calls = []

    def faulty(loss):
        def run(model, microbatch):
            calls.append(microbatch)
            if rank == "1" and len(calls) == 13 and fault != "lose":
                if fault == "raise":
                    raise ValueError("injected")
                if fault == "stop":
                    os.kill(os.getpid(), signal.SIGSTOP)
                time.sleep(1000.0)
            return loss(model, microbatch)

        return run

    case = Case("async", microbatches=2, model="transformer", steps=100)
    runtime = make(case, loss=faulty, timeout=float(timeout))
    if fault == "lose" and rank == "1":
        lose_a_gradient(runtime)
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
