"""A training in a process of its own: what it has imported, where it prints, what of its caller it takes over."""

import json
import os
import sys

import pytest

from pipemare_exp.experiment.sweep import fork_server as training_process


def says_what_it_is(arguments):
    import torch

    told = {
        "arguments": arguments,
        "session": os.getsid(0) == os.getpid(),
        "threads": torch.get_num_threads(),
        "environment": {name: os.environ.get(name) for name in ("OMP_NUM_THREADS", "A_NAME")},
        "imported": sorted({"torch", "torchvision", "mlflow", "fairseq"} & set(sys.modules)),
    }
    print(json.dumps(told), flush=True)
    print("and this goes where errors go", file=sys.stderr)
    return 7


@pytest.mark.parametrize("value", ["first", "second"])
def test_it_takes_over_the_callers_environment_and_gives_its_exit_code(tmp_path, monkeypatch, value):
    """Twice: the server that processes are forked from has the environment of the first start."""
    monkeypatch.setenv("A_NAME", value)
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    output = tmp_path / "output.log"
    process = training_process.start(says_what_it_is, ["train", "seed=1"], output)
    process.join(120)
    assert process.exitcode == 7
    told, error = output.read_text().splitlines()
    assert error == "and this goes where errors go"
    told = json.loads(told)
    if sys.platform == "linux":
        assert {"torch", "torchvision", "mlflow"} <= set(told.pop("imported"))
    assert told == {
        "arguments": ["train", "seed=1"],
        "session": True,
        "threads": 1,
        "environment": {"OMP_NUM_THREADS": "1", "A_NAME": value},
    }
    assert os.environ["OMP_NUM_THREADS"] == "4"


def test_output_that_cannot_be_written_is_told_before_anything_starts(tmp_path):
    with pytest.raises(OSError):
        training_process.start(says_what_it_is, [], tmp_path / "missing" / "output.log")
