"""`pipemare plan`: its JSON keys and numbers, the readable plan, and its errors."""

from __future__ import annotations

import argparse
import json
import math

import pytest

from pipemare_exp import methods, models
from pipemare_exp.commands import plan
from pipemare_exp.errors import UserError
from pipemare_exp.methods.hogwild import rounded_mean

STASHES = ("pipedream", "spectrain_stash", "msnag_stash", "dc_asgd", "dc_asgd_adaptive", "gap_aware", "nesterov")
BUFFERS = {
    "pipemare": 1, "pipe_optim": 1, "spectrain": 1, "spectrain_stash": 1, "xpipe": 2, "msnag": 1, "msnag_stash": 1,
    "dc_asgd": 1, "dc_asgd_adaptive": 2, "gap_aware": 3,
}  # fmt: skip


@pytest.fixture
def call(capsys):
    """Runs the command on a command line; returns what it printed."""

    def run(line: str) -> str:
        parser = argparse.ArgumentParser()
        plan.add_arguments(parser)
        assert plan.run(parser.parse_args(line.split())) == 0
        return capsys.readouterr().out

    return run


def test_json_keys_and_numbers(call):
    result = json.loads(call("--stages 107 --microbatches 32 --json"))
    known = {"stages", "microbatches", "slots", "tau_fwd", "drawn", "gpipe_ratio", "refill", "methods", "schedules"}
    assert set(result) == known
    assert result["refill"] == 213 / 32
    assert (result["stages"], result["microbatches"], result["slots"]) == (107, 32, "duplex")
    assert result["gpipe_ratio"] == 4.3125
    assert result["tau_fwd"] == [(2 * (107 - i) + 1) / 32 for i in range(1, 108)]
    assert set(result["methods"]) == set(methods.costs())
    for name, method in result["methods"].items():
        assert set(method) == {"utilization", "memory", "activations", "refused"}
        assert (method["refused"] is None) == (name != "two_bw")
        assert set(method["memory"]) == {"weights", "gradients", "optimizer", "stash_uniform", "buffers"}
        assert set(method["activations"]) == {"none", "sqrt"}
        assert method["memory"]["gradients"] == method["memory"]["optimizer"] == 1
        assert method["memory"]["weights"] == (2 if name == "two_bw" else 1)
        assert method["memory"]["stash_uniform"] == (3.34375 if name in STASHES else 0)
        assert method["memory"]["buffers"] == BUFFERS.get(name, 0)
        assert method["utilization"] == (pytest.approx(32 / 138) if name == "gpipe" else 1)
    assert result["methods"]["gpipe"]["activations"] == {"none": 107 * 32, "sqrt": None}
    # Ten segments of 10 stages, one of 7: 10 * 10^2 + 7^2, and inputs for 2 (7 + 17 + ... + 97) slots.
    expected = 10 * 10**2 + 7**2 + 2 * sum(range(7, 98, 10))
    assert result["methods"]["pipemare"]["activations"] == {"none": 107**2, "sqrt": expected}


def test_drawn_delays_are_those_after_rounding(call):
    result = json.loads(call("--stages 4 --microbatches 10 --json"))
    taus = [0.7, 0.5, 0.3, 0.1]
    assert set(result["drawn"]) == {"hogwild", "ringmaster"} and len(set(map(tuple, result["drawn"].values()))) == 1
    assert result["drawn"]["hogwild"] == pytest.approx([rounded_mean(tau, math.ceil(3 * tau)) for tau in taus])
    assert result["drawn"]["hogwild"][3] < 0.01
    longer = json.loads(call("--stages 4 --microbatches 10 --delay-scale 10 --json"))
    assert longer["drawn"]["hogwild"][3] == pytest.approx(rounded_mean(1.0, 3))
    assert "hogwild (drawn)" in call("--stages 4 --microbatches 10")


def test_optimizer_slots_and_a_square_number_of_stages(call):
    result = json.loads(call("--stages 9 --microbatches 4 --optimizer adamw --json"))
    assert {method["memory"]["optimizer"] for method in result["methods"].values()} == {2}
    assert result["methods"]["pipedream"]["activations"] == {"none": 81, "sqrt": 2 * 27 - 9}
    result = json.loads(call("--stages 9 --microbatches 4 --slots alternating --json"))
    assert result["tau_fwd"] == [(9 - i) / 4 for i in range(1, 10)]
    assert result["methods"]["pipemare"]["activations"] == {"none": 45, "sqrt": None}


def test_versions_with_steps(call):
    result = json.loads(call("--stages 2 --microbatches 2 --steps 3 --json"))
    assert result["versions"] == {
        "forward": [[[0, 0], [0, 0], [0, 1]], [[0, 0], [0, 1], [1, 2]]],  # floor((2t + n - L)/2), L = 3 and 1
        "backward": [[[0, 0], [1, 1], [2, 2]]] * 2,
    }


def test_microbatches_and_optimizer_have_the_usual_values(call):
    result = json.loads(call("--model transformer_iwslt_de_en --json"))
    assert (result["stages"], result["microbatches"]) == (93, 8)
    assert result["methods"]["pipemare"]["memory"]["optimizer"] == 2  # AdamW's two moments
    assert json.loads(call("--stages 3 --json"))["methods"]["gpipe"]["memory"]["optimizer"] == 1


def test_model_gives_stages_and_sizes(call):
    from pipemare_exp.models import unit_sizes

    units = unit_sizes("digits_resnet")
    result = json.loads(call("--model digits_resnet --microbatches 8 --json"))
    count = len(units)
    assert result["stages"] == count
    taus = [(2 * (count - i) + 1) / 8 for i in range(1, count + 1)]
    expected = sum(tau * size for tau, size in zip(taus, units, strict=True)) / sum(units)
    assert result["methods"]["pipedream"]["memory"]["stash_model"] == pytest.approx(expected)
    assert result["methods"]["gpipe"]["memory"]["stash_model"] == 0
    whole = json.loads(call("--model digits_resnet --stages 1 --microbatches 8 --json"))
    assert whole["stages"] == 1
    assert whole["methods"]["pipedream"]["memory"]["stash_model"] == 1 / 8
    two = json.loads(call("--model digits_resnet --stages 2 --microbatches 1 --json"))
    stash = two["methods"]["pipedream"]["memory"]["stash_model"]  # between all weights in the last and the first
    assert 1 < stash < 3
    shares = [sum(units[:cut]) / sum(units) for cut in range(1, count)]
    assert any(stash == pytest.approx(3 * share + (1 - share)) for share in shares)


def test_readable_plan_has_tables_and_grids(call):
    text = call("--stages 3 --microbatches 2 --steps 2")
    assert "P = 3 stages, N = 2 microbatches, duplex slots" in text
    for word in ("utilization", "stash (with stages of equal size", "pipemare_no_t2", "segments of"):
        assert word in text
    assert "stage 2 .  .  F0 F1/B0 F2/B1* F3/B2 B3* .   ." in text
    assert "stage 0 0/0 0/0 | 0/1 0/1" in text  # PipeMare: forward reads 0, backward 1
    assert max(map(len, text.splitlines())) <= 110


def test_a_shape_that_a_method_refuses_is_told(call):
    assert "Not two_bw: in duplex slots 2P-1 = 15" in call("--stages 8 --microbatches 4")
    assert "Not two_bw" not in call("--stages 8 --microbatches 15")


def test_schedules_are_listed_for_numbers_of_which_some_can_not_be_had(call):
    rows = {row["name"]: row for row in json.loads(call("--model resnet50 --microbatches 8 --json"))["schedules"]}
    assert list(rows)[:3] == ["gpipe", "1f1b", "interleaved"]
    assert list(rows)[-3:] == ["pipedream", "pipemare", "pipemare_no_t2"]
    assert rows["gpipe"]["utilization"] == pytest.approx(8 / 114)
    # Down to the loss and up again, then at the first stage one W and seven times I and W.
    assert rows["zb_h1"]["step"] == 107 + 107 + 15
    assert rows["pipedream"]["utilization"] == rows["pipemare"]["utilization"] == 1
    assert rows["pipemare"]["delay"] == [213 / 8, 107 / 8] and rows["gpipe"]["delay"] == [0, 0]
    for name in ("interleaved", "zb_v"):
        assert rows[name]["utilization"] is None
        assert "are 214, the model has 107 weight units; 53 devices are the most" in rows[name]["why_not"]
    text = call("--stages 4 --microbatches 9")
    assert "interleaved 1F1B: microbatches=9 on 4 devices" in text and "8 and 10" in text
    assert "ZB-V" in text and "PipeMare" in text


def test_numbers_too_large_to_walk_have_no_table_of_schedules(call):
    assert json.loads(call("--stages 300 --microbatches 4 --json"))["schedules"] is None
    assert "Too many stages and microbatches for a table" in call("--stages 8 --microbatches 9000")


def test_operations_of_unequal_times(call):
    rows = {r["name"]: r for r in json.loads(call("--stages 4 --microbatches 8 --times 1,2,0.5,0 --json"))["schedules"]}
    assert rows["1f1b"]["step"] == pytest.approx((8 + 3) * 3.5)
    assert rows["zb_h1"]["step"] == pytest.approx(8 * 3.5 + 3 * 2.5)
    for wrong, words in (("1,2", "four numbers F,I,W,C"), ("1,1,1,-1", "communication=-1.0"), ("0,0,0,1", "no time")):
        with pytest.raises(UserError, match=words):
            call(f"--stages 4 --times {wrong}")


def test_large_plans_leave_out_the_middle_and_the_grids(call):
    text = call("--stages 50 --microbatches 4 --steps 2")
    assert "F0" not in text and "grids go up to 8 x 40" in text
    rows = [line.split()[0] for line in text.splitlines() if line.strip()]
    assert "0" in rows and "49" in rows and "25" not in rows and "..." in rows


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--microbatches 8", "neither --stages nor --model"),
        (
            "--model digits_resnet --stages 5000 --microbatches 2",
            "--stages 5000, but digits_resnet has [0-9]+ ",
        ),
        ("--model digits_resnett --microbatches 2", "digits_resnet"),
    ],
)
def test_wrong_arguments(call, line, words):
    with pytest.raises(UserError, match=words):
        call(line)


def test_ranks_say_what_each_holds_and_how_to_start_them(call):
    text = call("--model resnet50 --stages 16 --ranks 8 --per-node 4")
    assert "8 ranks on 2 nodes of up to 4" in text
    assert "torchrun --nnodes 2 --nproc-per-node 4" in text
    found = json.loads(call("--model resnet50 --stages 16 --ranks 8 --per-node 4 --json"))
    assert [rank["node"] for rank in found["ranks"]] == [0] * 4 + [1] * 4
    assert sum(rank["weights"] for rank in found["ranks"]) == sum(models.unit_sizes("resnet50"))
    assert "engine.ranks=4" in call("--stages 4 --ranks 4 --per-node 4")
    assert "the same number on each" in call("--stages 4 --ranks 3 --per-node 2")


def test_more_ranks_than_stages_are_refused(call):
    with pytest.raises(UserError, match="engine.ranks=5 with 4 stages"):
        call("--stages 4 --ranks 5")
