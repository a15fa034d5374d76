"""How many updates a resolved configuration asks for."""

from __future__ import annotations

from pipemare_exp.experiment.config.schema import Config


def total_steps(cfg: Config) -> int:
    """Updates that the schedule spans (epochs times steps an epoch); `max_steps` may end the run before."""
    assert cfg.steps_per_epoch is not None, "resolve the configuration first"
    return cfg.epochs * cfg.steps_per_epoch


def last_step(cfg: Config) -> int:
    """Updates after which the run ends."""
    return cfg.max_steps or total_steps(cfg)
