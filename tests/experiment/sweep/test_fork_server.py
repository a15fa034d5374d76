"""A function in a process of its own: what it has imported, where it prints, what of its caller it takes over."""

import os
import signal
import sys

import pytest

from pipemare_exp.experiment.sweep import fork_server

pytestmark = pytest.mark.skipif(not fork_server.AVAILABLE, reason="forks of a server: on Linux")


def says_what_it_is(*arguments):
    import torch

    print("this goes where output goes", flush=True)
    print("and this goes where errors go", file=sys.stderr)
    return {
        "arguments": arguments,
        "session": os.getsid(0) == os.getpid(),
        "threads": torch.get_num_threads(),
        "environment": {name: os.environ.get(name) for name in ("OMP_NUM_THREADS", "A_NAME")},
        "imported": {"torch", "torchvision", "mlflow"} <= set(sys.modules),
    }


def dies():
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("value", ["first", "second"])
def test_it_takes_over_the_callers_environment_and_hands_back_the_functions_value(tmp_path, monkeypatch, value):
    """Twice: the server that processes are forked from has the environment of the first start."""
    monkeypatch.setenv("A_NAME", value)
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    output = tmp_path / "output.log"
    output.write_text("of an earlier session\n")
    child = fork_server.start(says_what_it_is, ("train", 1), output)
    assert child.answer.poll(120)
    assert child.answer.recv() == {
        "arguments": ("train", 1),
        "session": True,
        "threads": 1,
        "environment": {"OMP_NUM_THREADS": "1", "A_NAME": value},
        "imported": True,
    }
    child.process.join(30)
    lines = ["of an earlier session", "this goes where output goes", "and this goes where errors go"]
    assert output.read_text().splitlines() == lines
    assert os.environ["OMP_NUM_THREADS"] == "4"


def test_a_process_that_dies_is_noticed_by_its_answer(tmp_path):
    child = fork_server.start(dies, (), tmp_path / "output.log")
    assert child.answer.poll(120)
    with pytest.raises(EOFError):
        child.answer.recv()


def test_output_that_cannot_be_written_is_told_before_anything_starts(tmp_path):
    with pytest.raises(OSError):
        fork_server.start(says_what_it_is, (), tmp_path / "missing" / "output.log")
