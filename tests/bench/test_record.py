"""Recorded benchmarks: what was measured before stays, and the docs' tables are those of the recorded rows."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from pipemare_exp import cli
from pipemare_exp.bench import record

ROOT = Path(__file__).resolve().parents[2]

ROW = {"stages": 4, "microbatches": 2, "method": "pipemare", "utilization_model": 1.0, "utilization": 0.96,
       "utilization_min": 0.951, "over_gpipe_model": 2.5, "over_gpipe": 2.44}  # fmt: skip


def test_measurements_of_different_times_stand_beside_each_other(tmp_path: Path) -> None:
    path = tmp_path / "runtime.json"
    record.add(path, {"sleep": [ROW]}, ["bench", "runtime", "--only", "sleep"])
    record.add(path, {"memory": []}, ["bench", "runtime", "--only", "memory"])
    record.add(path, {"sleep": [ROW, ROW]}, ["bench", "runtime"])
    found = json.loads(path.read_text())
    assert list(found) == ["sleep", "memory"]
    assert found["sleep"]["rows"] == [ROW, ROW] and found["sleep"]["command"] == "pipemare bench runtime"
    assert found["memory"]["command"] == "pipemare bench runtime --only memory"
    assert {"commit", "machine", "versions"} <= set(found["memory"])


def test_a_table_has_model_and_measurement(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "runtime.json"
    record.add(path, {"sleep": [ROW]}, ["bench", "runtime"])
    assert cli.main(["bench", "runtime", "--table", str(path)]) == 0
    assert "| 4 | 2 | pipemare | 1.000 | 0.960 | 0.951 | 2.500 | 2.440 |" in capsys.readouterr().out
    assert cli.main(["bench", "runtime", "--table", str(tmp_path / "none.json")]) == 2
    assert "give a file that --out wrote" in capsys.readouterr().err


def test_the_docs_show_what_was_recorded() -> None:
    shown = re.search(r"<!-- recorded -->\n\n(.*)\n<!-- end -->", (ROOT / "docs/runtime.md").read_text(), re.DOTALL)
    assert shown is not None
    recorded = json.loads((ROOT / "results/bench/runtime.json").read_text())
    assert shown[1] == record.tables(recorded)
    assert not any(part["dirty"] for part in recorded.values())
