"""What is written without PyYAML reads alike with and without it."""

import pytest
import yaml

from pipemare_exp.errors import UserError
from pipemare_exp.experiment.config import yaml_text
from pipemare_exp.experiment.config.load import load, to_yaml

TREE = {
    "rate": 0.1, "eps": 1e-05, "small": 1.5e-07, "large": 1e22, "whole": 3, "negative": -2e-09, "on": True,
    "none": None, "text": 'a "quoted" 1e-05, null: [x]', "list": [1, 0.5, "no", []],
    "nested": {"empty": {}, "deep": {"yes": "yes"}},
}  # fmt: skip


def test_json_reads_as_yaml_and_back(monkeypatch):
    monkeypatch.setattr(yaml_text, "yaml", None)
    text = yaml_text.dumps(TREE)
    assert yaml.safe_load(text) == TREE
    assert yaml_text.loads(text) == TREE
    assert type(yaml.safe_load(text)["eps"]) is float


def test_a_configuration_survives(monkeypatch):
    cfg = load(["task=cifar10", "method=pipemare", "optimizer.weight_decay=1e-5"])
    with_yaml = to_yaml(cfg)
    monkeypatch.setattr(yaml_text, "yaml", None)
    assert yaml.safe_load(to_yaml(cfg)) == yaml.safe_load(with_yaml)
    with pytest.raises(UserError, match="PyYAML"):
        yaml_text.loads(with_yaml)
