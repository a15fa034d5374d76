"""What one process of a pipeline does from torchrun's start to its end."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, TextIO

import torch
import torch.distributed as dist

from pipemare_exp.environment import FAILURES, mark
from pipemare_exp.errors import UserError
from pipemare_exp.experiment.config.schema import Config
from pipemare_exp.experiment.runtime import rank_files
from pipemare_exp.experiment.runtime.build import TIMEOUT, build, check
from pipemare_exp.experiment.runtime.decisions import Alone, bounded, tell, told
from pipemare_exp.experiment.runtime.engine import RuntimeEngine
from pipemare_exp.experiment.runtime.loop import RuntimeLoop
from pipemare_exp.experiment.runtime.measured import report_of, write_reports
from pipemare_exp.experiment.training import assemble
from pipemare_exp.experiment.training import session as train
from pipemare_exp.experiment.training.assemble import Prepared
from pipemare_exp.experiment.training.interrupts import SIGNALS
from pipemare_exp.pipeline.runtime.inbox import RankFailure, Stopped
from pipemare_exp.pipeline.runtime.messages import Kind, text_message, text_of
from pipemare_exp.pipeline.runtime.processes import Watch, keep_freed_memory
from pipemare_exp.pipeline.runtime.rank import Runtime
from pipemare_exp.tied import end_with_starter

MEETING = timedelta(minutes=5)
"""How long ranks wait for each other at the start, while data is prepared."""


def work(cfg: Config, overrides: Sequence[str], runs: str | None, out: TextIO) -> tuple[int, train.Result | None]:
    """This process's part of the run: (exit code, on rank 0 the result)."""
    end_with_starter()  # again for a rank that was not started by `python -m pipemare_exp`
    keep_freed_memory()
    ranks = int(os.environ["WORLD_SIZE"])
    if cfg.engine.ranks not in (None, ranks):
        raise UserError(f"engine.ranks={cfg.engine.ranks}, but torchrun started {ranks} processes; leave one out")
    try:
        cfg = _join(cfg)
        mark("joined")
        prepared = _prepare_in_turn(cfg, ranks)
        if prepared is None:
            return 2, None
        if dist.get_rank() == 0:
            code, result = _lead(prepared, ranks, overrides, runs, out)
        else:
            code, result = _follow(prepared, ranks), None
    except Alone as error:
        record(f"rank {os.environ['RANK']} {error}", said=False)
        return 1, None
    if code != 1:  # else other ranks are gone, and leaving the group would wait for them
        dist.destroy_process_group()
    return code, result


def _join(cfg: Config) -> Config:
    """Enter the process group; the configuration with this process's device and threads."""
    device = assemble.choose_device(cfg.device)
    local, beside = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    backend = "gloo"
    if device.type == "cuda":
        gpus = torch.cuda.device_count()
        torch.cuda.set_device(local % gpus)
        if beside <= gpus:
            backend = "cpu:gloo,cuda:nccl"
    with bounded(f"did not meet the other ranks within {MEETING.seconds:g} s"):
        # After a restart the store may still hold the addresses of the ranks before.
        store, rank, ranks = next(dist.rendezvous("env://", timeout=MEETING))
        store = dist.PrefixStore(f"attempt-{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", store)
        dist.init_process_group(backend, store=store, rank=rank, world_size=ranks, timeout=MEETING)
    # Ranks share the processor: more than one thread each makes small operations many times slower.
    torch.set_num_threads(cfg.threads or 1)
    return replace(cfg, device=device.type, threads=cfg.threads or 1)


def _prepare_in_turn(cfg: Config, ranks: int) -> Prepared | None:
    """Rank 0 first, which may have to make files of prepared data, then the others; None where rank 0 cannot."""
    if dist.get_rank() == 0:
        try:
            prepared = assemble.prepare(cfg)
            check(prepared, ranks)
        except BaseException as error:
            if isinstance(error, UserError):
                record_exit(2)
            tell({"go": False})
            raise
        tell({"go": True})
        return prepared
    return assemble.prepare(cfg) if told()["go"] else None


def _lead(
    prepared: Prepared, ranks: int, overrides: Sequence[str], runs: str | None, out: TextIO
) -> tuple[int, train.Result]:
    engine = RuntimeEngine(prepared, ranks)
    watch: list[Watch] = []

    def make_loop(*args: Any, **options: Any) -> RuntimeLoop:
        loop = RuntimeLoop(*args, **(options | {"engine": engine}))
        watch.append(watch_actions(lambda: engine.runtime, prepared.cfg.engine.timeout))
        return loop

    try:
        result = train.train(prepared.cfg, overrides, runs=runs, out=out, prepared=prepared, make_loop=make_loop)
    except BaseException as error:
        if engine.runtime is None:
            if isinstance(error, UserError):
                record_exit(2)
            tell({"go": False, "code": 2})
        else:
            leave(engine.runtime, error)
        raise
    runtime = engine.runtime
    if runtime is None:  # found finished
        tell({"go": False, "code": 0})
        return result.exit_code, result
    if result.outcome == "failed" or (result.outcome == "interrupted" and runtime.stop_at is None):
        text = result.run.status.get("error", "rank 0 was interrupted").removeprefix("RankFailure: ")
        record(text, said=True)
        leave(runtime, RankFailure(text))
        return 1, result
    if result.outcome == "diverged":
        runtime.transport.tell(Kind.STOP)
    reports = [report_of(runtime)]
    reports += [json.loads(text_of(runtime.transport.take((Kind.REPORT, r, 0), r))) for r in range(1, ranks)]
    write_reports(result.run.path, prepared.cfg, reports)
    runtime.transport.close()
    for each in watch:
        each.stop()
    return result.exit_code, result


def _follow(prepared: Prepared, ranks: int) -> int:
    """Any rank but 0: work until the columns end, or rank 0 ends the run."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # rank 0 hears it too, and says where to stop
    decision = told()
    if not decision["go"]:
        return decision["code"]
    folder = Path(decision["folder"])
    runtime = build(prepared, ranks, folder, lambda version: (False, False))
    watch = watch_actions(lambda: runtime, prepared.cfg.engine.timeout)
    try:
        if decision["version"] is not None:
            rank_files.restore(runtime, folder, decision["version"])
        try:
            while runtime.advance():
                pass
        except Stopped:
            pass
        runtime.transport.send(0, text_message(Kind.REPORT, json.dumps(report_of(runtime)), stage=runtime.rank))
        runtime.transport.close()
    except Exception as error:
        leave(runtime, error)
        return 1
    watch.stop()
    return 0


def leave(runtime: Runtime, error: BaseException) -> None:
    """Pass on what has happened, in one line; this process should end then."""
    text = str(error) if isinstance(error, RankFailure) else runtime.failure(error)
    transport = runtime.transport
    if transport.rank:
        said = transport.rank == 1 and text.startswith("rank 0 ") and FAILURES not in os.environ
        if said:  # rank 0 cannot any more
            print(f"pipemare: {text}", file=sys.stderr, flush=True)
        record(text, said)
    transport.leave(text)


def watch_actions(runtime: Callable[[], Runtime | None], timeout: float | None) -> Watch:
    """Watch this process's own actions (`timeout` in seconds, None: the default); a rank that hangs says so itself.

    `runtime()` is None before there is one.
    """

    def running() -> tuple[str, float] | None:
        made = runtime()
        return None if made is None else made.busy

    def tell(text: str) -> None:
        made = runtime()
        assert made is not None
        transport = made.transport
        line = f"{transport.name(transport.rank)} {text}"
        record(line, said=False)
        if transport.rank == 0 and FAILURES not in os.environ:
            print(f"pipemare: {line}", file=sys.stderr, flush=True)
        transport.leave(line)

    return Watch(timeout or TIMEOUT, running, tell)


def record_exit(code: int) -> None:
    """Leave the exit code for `pipemare train`: torchrun's own says only that some rank had another than 0."""
    folder = os.environ.get(FAILURES)
    if folder and code != 1:
        (Path(folder) / "exit.json").write_text(json.dumps({"code": code}), encoding="utf-8")


def record(text: str, said: bool) -> None:
    """Leave word for `pipemare train`, if it started this process: what has happened, and whether a user was told."""
    folder = os.environ.get(FAILURES)
    if folder:
        path = Path(folder) / f"rank-{os.environ.get('RANK', 0)}.json"
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps({"text": text, "said": said}), encoding="utf-8")
        os.replace(temporary, path)
