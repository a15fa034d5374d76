"""The files for Slurm and Kubernetes in docs/runtime.md: their grammar, and that their parts agree with each other."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import yaml

from pipemare_exp.experiment.config.load import load

PAGE = (Path(__file__).parents[3] / "docs" / "runtime.md").read_text(encoding="utf-8")


def block(language: str, begins: str) -> str:
    (found,) = [text for text in re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL) if text.startswith(begins)]
    return found


def check_command(command: str, nodes: int, cores: int) -> None:
    """torchrun's own parser and ours take the words, which fit the machines that are asked for."""
    from torch.distributed.run import parse_args

    words = shlex.split(re.sub(r"\$[A-Z_]*(RANK|PORT)", "0", command))
    args = parse_args(words[words.index("torchrun") + 1 :])
    assert (args.nnodes, args.nproc_per_node) == (str(nodes), str(cores))
    assert args.module and args.training_script == "pipemare_exp" and args.training_script_args[0] == "train"
    cfg = load(args.training_script_args[1:])
    assert cfg.engine.name == "runtime" and (cfg.pipeline.stages or 0) >= nodes * cores
    assert cfg.tracking.name == "none", "SQLite is not for storage that several machines write"


def test_slurm() -> None:
    script = block("bash", "#!/bin/bash\n#SBATCH")
    assert subprocess.run(["bash", "-n"], input=script, text=True, timeout=60).returncode == 0
    options = dict(re.findall(r"#SBATCH --([\w-]+)=(\S+)", script))
    command = script[script.index("torchrun") :].replace("\\\n", " ")
    check_command(command, int(options["nodes"]), int(options["cpus-per-task"]))
    assert options["ntasks-per-node"] == "1"
    assert int(options["signal"].partition("@")[2]) > 100  # torchrun's shutdown timeout


def test_kubernetes() -> None:
    job = yaml.safe_load(block("yaml", "apiVersion: kubeflow.org/v1\n"))
    assert job["kind"] == "PyTorchJob"
    replicas = job["spec"]["pytorchReplicaSpecs"]
    nodes = sum(one["replicas"] for one in replicas.values())
    assert replicas["Master"]["template"] == replicas["Worker"]["template"]
    pod = replicas["Master"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["name"] == "pytorch"  # by which the operator finds it
    (command,) = container["args"]
    assert subprocess.run(["sh", "-n"], input=command, text=True, timeout=60).returncode == 0
    check_command(command, nodes, int(container["resources"]["requests"]["cpu"]))
    mounts = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
    assert set(mounts) == {one["name"] for one in pod["volumes"]}
    values = {one["name"]: one["value"] for one in container["env"]}
    assert all(values[name].startswith(mounts["shared"]) for name in ("PIPEMARE_RUNS", "PIPEMARE_DATA"))
