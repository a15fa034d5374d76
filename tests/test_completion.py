"""The Tab key: what fits the line, found without importing torch, in a shell's own way of asking."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ASK = """
import json, os, sys
from pathlib import Path
from pipemare_exp import cli

def answer(line, out):
    child = os.fork()
    if child == 0:
        os.environ |= {"COMP_LINE": line, "COMP_POINT": str(len(line)), "_ARGCOMPLETE_STDOUT_FILENAME": out}
        cli.main()  # ends the process
    os.waitpid(child, 0)
    return Path(out).read_text().split("\\n")

import paper_figures.registry, pipemare_exp.completion  # what the answers need, once for all of them
lines, out = json.loads(sys.argv[1]), sys.argv[2]
print(json.dumps([answer(line, f"{out}/{number}") for number, line in enumerate(lines)]))
heavy = {"torch", "hydra", "mlflow", "matplotlib", "seaborn", "pandas", "fairseq"} & set(sys.modules)
assert not heavy, heavy
"""

CASES = [
    ("", {"train", "sweep", "completion"}),
    ("tr", {"train", "translate", "track"}),
    ("train --c", {"--cfg"}),
    ("train optimizer.ra", {"optimizer.rate="}),
    ("train pipeline.sl", {"pipeline.slots="}),
    ("train pipeline.slots=", {"duplex", "alternating"}),
    ("train optimizer.fused=", {"true", "false"}),
    ("train seed=3 task=cif", {"cifar10"}),
    ("train --runs RUNS task=cif", {"cifar10"}),
    ("train method=gp", {"gpipe"}),
    ("sweep ablation_d", {"ablation_digits"}),
    ("sweep ablation seed", {"seeds=", "seed="}),
    ("sweep ablation launcher=j", {"joblib"}),
    ("sweep ablation scale=", {"demo", "laptop", "paper"}),
    ("figures ablation_d", {"ablation_digits"}),
    ("eval --runs RUNS digits-g", {"digits-gpipe-demo-s0-12345678"}),
    ("compare num", {"numerals"}),
    ("data prep", {"prepare"}),
    ("bench run", {"runtime"}),
    ("completion ", {"bash", "zsh"}),
]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """What is offered at the end of each line; one process answers them all, as forks of it."""
    folder = tmp_path_factory.mktemp("completion")
    run = folder / "runs" / "digits-gpipe-demo-s0-12345678"
    run.mkdir(parents=True)
    (run / "config.yaml").write_text("")
    lines = ["pipemare " + line.replace("RUNS", str(folder / "runs")) for line, _ in CASES]
    shell = {"_ARGCOMPLETE": "1", "_ARGCOMPLETE_IFS": "\n", "_ARGCOMPLETE_SUPPRESS_SPACE": "1"}
    shell |= {"_ARGCOMPLETE_COMP_WORDBREAKS": " \t\n\"'><=;|&(:"}  # bash's
    done = subprocess.run(
        [sys.executable, "-c", ASK, json.dumps(lines), str(folder)],
        env={**os.environ, **shell},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return {line: set(found) for (line, _), found in zip(CASES, json.loads(done.stdout), strict=True)}


@pytest.mark.parametrize("line, expected", CASES, ids=[line or "nothing" for line, _ in CASES])
def test_what_is_offered(line: str, expected: set[str], answers: dict[str, set[str]]) -> None:
    assert expected <= answers[line]
    last = line.split(" ")[-1].rpartition("=")[2]
    assert all(one.startswith(last) for one in answers[line])


def test_bash_completes_with_the_line_that_the_command_prints(tmp_path: Path) -> None:
    """The whole way: the shell's function, the command, the words that come back."""
    (tmp_path / "pipemare").write_text(f'#!/bin/sh\nexec {sys.executable} -m pipemare_exp "$@"\n')
    (tmp_path / "pipemare").chmod(0o755)
    script = """
        eval "$(pipemare completion bash)"
        COMP_LINE="pipemare train method=pipe" COMP_POINT=26 COMP_TYPE=9 COMP_CWORD=4
        COMP_WORDS=(pipemare train method = pipe)
        _python_argcomplete pipemare
        echo "${COMPREPLY[@]}"
    """
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["pipe_optim", "pipedream", "pipedream_t1", "pipemare"], done.stderr
