"""What the benchmark counts (its times are the machine's and are not tested)."""

import json
import statistics

import pytest
import torch

from pipemare_exp import cli
from pipemare_exp.bench import emulator, workloads


@pytest.mark.parametrize("method", list(workloads.METHODS))
@pytest.mark.parametrize("beside", [False, True])
def test_moved_bytes_are_what_the_emulator_moves(method, beside, monkeypatch):
    """Against the operands' sizes of every copy, sum and average that a step makes outside of the model."""
    workload = workloads.build("resnet20", 4, 4, width=2)
    monkeypatch.setattr("pipemare_exp.pipeline.emulator.ways.WORTHWHILE", 0 if beside else 1 << 40)
    made = workload.emulated(method, 9)
    for _ in range(max(made.method.delays, default=0) // 4 + 2):
        made.step(workload.microbatches, workload.loss, 0.0)
    moved = []

    def counted(function, operands):
        def call(first, *rest, **named):
            moved.append(operands * (sum(t.nbytes for t in first) if isinstance(first, list) else first.nbytes))
            return function(first, *rest, **named)

        return call

    state = {"on": False}

    def during(function):
        def call(*args, **named):
            state["on"], before = True, state["on"]
            try:
                return function(*args, **named)
            finally:
                state["on"] = before

        return call

    for owner, name, operands in (
        (torch, "_foreach_copy_", 2), (torch, "add", 3), (torch, "sub", 3), (torch.Tensor, "lerp_", 3),
        (torch.Tensor, "copy_", 2),
    ):  # fmt: skip
        function = getattr(owner, name)
        counting = counted(function, operands)
        monkeypatch.setattr(
            owner, name, lambda *a, f=function, c=counting, **k: c(*a, **k) if state["on"] else f(*a, **k)
        )
    for owner, name in ((made.weights, "load"), (made.weights, "beside"), (made.history, "change"),
                        (made.history, "push"), (made.method, "updated")):  # fmt: skip
        monkeypatch.setattr(owner, name, during(getattr(owner, name)))
    made.step(workload.microbatches, workload.loss, 0.0)
    assert sum(moved) == emulator.moved_bytes(made)
    assert (method == "gpipe") == (emulator.moved_bytes(made) == 0)


@pytest.mark.parametrize("method", list(workloads.METHODS))
def test_predicted_memory_is_what_the_emulator_holds(method):
    workload = workloads.build("resnet20", 4, 4, width=2)
    made = workload.emulated(method, 9)
    for _ in range(2 * max(made.method.delays, default=0) // 4 + 2):
        made.step(workload.microbatches, workload.loss, 0.01)
    held = made.memory()
    held = sum(held[name] for name in ("history", "buffers", "rings", "staged"))
    assert emulator.predicted_memory(made) <= held < emulator.predicted_memory(made) + 100 * 64 * 65  # padding


def test_the_command_writes_what_it_prints(tmp_path, capsys):
    out = tmp_path / "bench.json"
    arguments = ["bench", "emulator", "--model", "resnet20", "--batch", "8", "--pairs", "1", "--threads", "1",
                 "--no-memory", "--out", str(out)]  # fmt: skip
    assert cli.main(arguments) == 0
    assert "moved MB" in capsys.readouterr().out
    written = json.loads(out.read_text())
    assert [row["method"] for row in written["rows"]] == ["plain", "gpipe", "t1+t2"]
    assert written["versions"]["torch"] and written["machine"]["cores"]
    assert written["rows"][0]["ratio_median"] == 1.0 and written["rows"][2]["stages"] == 43
    assert cli.main(["bench", "emulator", "--scaling", "--model", "resnet20"]) == 2
    assert cli.main(["bench", "emulator", "--method", "t1t2"]) == 2
    assert cli.main(["bench", "emulator", "--clock", "cpu", "--threads", "2"]) == 2
    assert cli.main([*arguments[:-1], str(tmp_path / "none" / "x.json")]) == 2


def test_medians_over_fresh_processes():
    found = emulator.in_processes(
        2, "resnet20", ["gpipe"], 2, batch=4, pairs=3, threads=1, width=1, memory=False, clock="cpu"
    )
    assert [row["method"] for row in found] == ["plain", "gpipe"]
    for row in found:
        assert row["processes"] == len(row["ratio_medians"]) == 2
        assert row["ratio_median"] == statistics.median(row["ratio_medians"])
        assert (row["ratio_min"], row["ratio_max"]) == (min(row["ratio_medians"]), max(row["ratio_medians"]))
    assert found[0]["ratio_medians"] == [1.0, 1.0] and found[1]["seconds"] > 0


def test_a_language_model_is_a_workload(monkeypatch):
    """GPT-2's workload with a small model in its place: gpipe's emulated steps are the plain ones, bit for bit."""
    monkeypatch.setitem(workloads.BATCHES, "gpt_tiny", 512)
    plain, emulated = (workloads.build("gpt_tiny", 2) for _ in range(2))
    assert [tuple(part.shape) for part in plain.microbatches] == [(2, 129), (2, 129)]
    step, fast = plain.plain_step(), emulated.emulated("gpipe")
    assert fast.pipeline.stages == 22
    for _ in range(2):
        step()
        fast.step(emulated.microbatches, emulated.loss, 0.01)
    for (name, a), b in zip(plain.model.named_parameters(), emulated.model.parameters(), strict=True):
        assert torch.equal(a, b), name
    assert {"gpt2"} == set(workloads.BATCHES) - set(workloads.SMALL) - {"gpt_tiny"}
