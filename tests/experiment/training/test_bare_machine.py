"""Images train on a machine that has torch, torchvision and numpy only: what else is imported must not be needed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import yaml

from pipemare_exp.experiment.config.load import load, to_mapping
from pipemare_exp.experiment.runs import provenance
from pipemare_exp.experiment.runs.folder import Run
from pipemare_exp.experiment.tracking import tracker as tracking

ROOT = Path(__file__).resolve().parents[3]
# scikit-learn, where the digits come from, brings scipy with it and is allowed here; CIFAR-10 needs neither.
ABSENT = ["hydra", "omegaconf", "mlflow", "fairseq", "yaml", "tqdm", "rich", "matplotlib", "seaborn", "sacrebleu"]
TRAIN = """
import json, sys
for name in json.loads(sys.argv[1]):
    sys.modules[name] = None
from pipemare_exp.experiment.config.load import from_mapping, load, to_mapping
from pipemare_exp.experiment.training import session
cfg = from_mapping(json.load(open(sys.argv[2])))
result = session.train(cfg, json.loads(sys.argv[4]), runs=sys.argv[3])
assert result.outcome == "finished", result
"""
SETTINGS = ["task=digits", "method=t1_t2", "model.width=2", "pipeline.stages=12", "max_steps=4", "tracking=none"]


def test_training_needs_no_hydra_mlflow_fairseq_or_yaml(tmp_path):
    cfg = load(SETTINGS)
    (tmp_path / "config.json").write_text(json.dumps(to_mapping(cfg)))
    arguments = [json.dumps(ABSENT), str(tmp_path / "config.json"), str(tmp_path / "runs"), json.dumps(SETTINGS)]
    done = subprocess.run(
        [sys.executable, "-c", TRAIN, *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (run,) = (tmp_path / "runs").iterdir()
    assert yaml.safe_load((run / "config.yaml").read_text()) == Run(run).config
    assert Run(run).config["optimizer"]["weight_decay"] == 5e-4
    assert Run(run).outcome == "finished" and Run(run).overrides == SETTINGS
    # What was written there goes into MLflow here.
    assert tracking.mirror_run(Run(run), f"sqlite:///{tmp_path / 'mlflow.db'}", "bare")


def test_a_copy_without_history_names_its_commit(tmp_path, monkeypatch):
    monkeypatch.setattr(provenance, "project_root", lambda: tmp_path)
    monkeypatch.delenv("PIPEMARE_COMMIT", raising=False)
    assert provenance.commit() == (None, None)
    monkeypatch.setenv("PIPEMARE_COMMIT", "0123abc")
    assert provenance.commit() == ("0123abc", None)
