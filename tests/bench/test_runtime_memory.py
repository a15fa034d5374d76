"""The memory benchmark against costs.py, on ranks of its own."""

from __future__ import annotations

import pytest

from pipemare_exp.bench.runtime_memory import memory, totals


@pytest.mark.slow
def test_stash_and_delta_are_what_the_model_says() -> None:
    rows = memory("digits_resnet", 2, [1])
    assert [(row["method"], row["rank"]) for row in rows][:4] == [("gpipe", 0), ("gpipe", 1), ("pipedream", 0),
                                                                 ("pipedream", 1)]  # fmt: skip
    for row in rows:
        padding = row["weights"] / (row["weights"] - 64 * 43) + 1e-9  # at most a cache line a parameter
        assert row["history_model"] <= row["history"] <= row["history_model"] * padding
        assert row["delta_model"] <= row["delta"] <= row["delta_model"] * padding
    by_method = {row["method"]: row for row in totals(rows)}
    # Delays of 3 and 1 steps: whole versions are the paper's average and the current one.
    assert by_method["pipedream"]["history"] == pytest.approx(by_method["pipedream"]["stash_model"] + 1)
    assert by_method["pipemare"]["history"] == by_method["pipemare"]["delta"] == 0
    assert by_method["pipemare-t2"]["delta"] == by_method["pipemare-t2"]["delta_model"] == 1
