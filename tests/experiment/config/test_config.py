"""Composition, validation, resolution and identity of configurations."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import FrozenInstanceError, replace

import pytest

from pipemare_exp import methods
from pipemare_exp.data import TASKS
from pipemare_exp.errors import UserError
from pipemare_exp.experiment.config import compose, folder
from pipemare_exp.experiment.config.identity import config_hash, identity, run_name
from pipemare_exp.experiment.config.lengths import last_step, total_steps
from pipemare_exp.experiment.config.load import from_mapping, load, to_mapping
from pipemare_exp.experiment.config.resolve import resolve
from pipemare_exp.experiment.config.schema import Config
from pipemare_exp.experiment.config.tree import OTHER_WORDS, setting_names

UNITS = [9, 16, 72, 144, 72, 10]
METHOD_FILES = ("gpipe", "pipedream", "async", "t1", "t2", "t1_t2", "pipemare")


def resolved(*overrides: str, steps: int = 22):
    return resolve(load(overrides), UNITS, steps, pieces=[0, 2, 3, 5])


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("method", compose.options("method"))
def test_every_task_and_method_compose_resolve_and_survive_their_own_yaml(task: str, method: str) -> None:
    cfg = resolved(f"task={task}", f"method={method}")
    assert (cfg.task.name, cfg.data.name, cfg.scale) == (task, task, folder.first_scale(task))
    assert methods.file_of(cfg.method.label) == method
    again = from_mapping(to_mapping(cfg))
    assert again == cfg
    assert resolve(again, UNITS, 22) == cfg
    assert config_hash(again) == config_hash(cfg)


def test_every_task_has_a_file_and_its_first_scale_a_recipe() -> None:
    assert set(TASKS) == set(folder.options("task"))
    assert all(folder.first_scale(task) in folder.scales(task) for task in TASKS)


def test_a_file_of_settings_that_are_taken_together(tmp_path, monkeypatch) -> None:
    shutil.copytree(compose.config_folder(), tmp_path / "configs")
    (tmp_path / "configs" / "experiment").mkdir()
    (tmp_path / "configs" / "experiment" / "small.yaml").write_text("# @package _global_\nmodel:\n  width: 2\n")
    for module in (compose, folder):
        monkeypatch.setattr(module, "config_folder", lambda: tmp_path / "configs")
    cfg = load(["experiment=small", "method=t1"])
    assert (cfg.model.width, cfg.method.lr_rescheduling.enabled) == (2, True)


def test_labels() -> None:
    labels = [resolved(f"method={name}").method.label for name in METHOD_FILES]
    assert labels == ["gpipe", "pipedream", "async", "t1", "t2", "t1+t2", "t1+t2+t3"]
    assert resolved("method=hogwild").method.label == "hogwild"
    assert resolved("method=hogwild_t1").method.label == "hogwild+t1"
    assert run_name(resolved("method=hogwild_t1")).startswith("digits-hogwild_t1-demo-s0-")
    assert resolved("method=t1", "method.sync_warmup.enabled=true").method.label == "t1+t3"
    assert resolved("method=pipedream", "method.lr_rescheduling.enabled=true").method.label == "pipedream+t1"


def test_own_options_of_a_method_lie_beside_the_shared_ones() -> None:
    plain, other = resolved("method=hogwild"), resolved("method=hogwild", "method.delay_scale=2")
    own = {"delay_scale": 1.0, "backward": "same", "draw": "step"}
    assert own.items() <= identity(plain)["method"].items() and "max_delay" not in identity(plain)["method"]
    assert identity(other)["method"]["delay_scale"] == 2.0
    assert not own.keys() & to_mapping(resolved("method=t1"))["method"].keys()


def test_an_experiment_brings_its_scale_and_the_command_line_wins() -> None:
    assert load(["task=cifar10", "method=t1"]).scale == "laptop"
    paper = load(["task=cifar10", "method=t1", "scale=paper"])
    assert (paper.scale, paper.model.name, paper.epochs) == ("paper", "resnet50", 200)
    assert load(["task=cifar10", "method=t1", "scale=paper", "model=resnet20"]).model.name == "resnet20"


def test_a_value_of_the_command_line_wins_over_the_recipe() -> None:
    assert load(["optimizer.rate=0.125"]).optimizer.rate == 0.125
    assert load(["model.width=16"]).model.width == 16  # no file names it, the schema does


def test_composing_inside_a_hydra_job_leaves_the_job_its_hydra() -> None:
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    with initialize_config_dir(str(compose.config_folder()), version_base="1.3"):
        outer = GlobalHydra.instance().hydra
        assert load(["seed=4"]).seed == 4
        assert GlobalHydra.instance().hydra is outer
        with pytest.raises(UserError):
            load(["method=nothing"])
        assert GlobalHydra.instance().hydra is outer


WRONG = {
    "method=pipemar": ["method=pipemar", 'did you mean "pipemare"'],
    "experiment=digits/t1": ["experiment=digits/t1", "write task=digits method=t1"],
    "metod=t1": ['"metod"', 'did you mean "method"'],
    "method=t3": ["method=t3", "gpipe", "t1_t2"],
    "scale=paper": ["task digits", "scale=paper", "demo"],
    "scale=huge": ["scale=huge", "demo, laptop, paper"],
    "optimizer.rat=0.1": ['"optimizer.rat"', 'did you mean "optimizer.rate"'],
    "optimizer.lr=0.1": ['"optimizer.lr"', 'did you mean "optimizer.rate"'],
    "lr=0.1": ['"lr"', 'did you mean "optimizer.rate"'],
    "data.batch=8": ['"data.batch"', 'did you mean "data.batch_size"'],
    "augment=true": ['did you mean "data.augment"'],
    "qqq=1": ['"qqq"', "seed", "pipeline"],
    "+qqq=1": ['"qqq"'],
    "optimizer.rate=fast": ["optimizer.rate=fast", "a number", "above 0"],
    "optimizer.rate=-1": ["optimizer.rate=-1", "above 0"],
    "optimizer.rate=.inf": ["optimizer.rate"],
    "seed=1.5": ["seed=1.5", "whole number"],
    "seed=true": ["seed=True", "whole number"],
    "seed=null": ["seed must not be null"],
    "seed=1,2": ["seed=1,2", "several runs"],
    "seed": ['"seed" is not an override', "name=value"],
    "seed=[": ["not an override"],
    "~method": ["~method", "gpipe"],
    "~seed": ["~seed", "null"],
    "task=null": ["task=null", "digits"],
    "task=mnist": ["task=mnist", "digits"],
    "optimizer=[sgd,adam]": ["optimizer", "sgd"],
    "task.name=cifar10": ["data.name=digits", "task=cifar10"],
    "pipeline=5": ["pipeline", "duplex"],
    "pipeline.microbatches=-4": ["pipeline.microbatches=-4", "at least 1"],
    "pipeline.microbatches=65": ["pipeline.microbatches=65", "data.batch_size=64"],
    "pipeline.boundaries=[1,2]": ["pipeline.boundaries=[1, 2]", "begin with 0"],
    "pipeline.boundaries=[0,3,3]": ["ascend"],
    "pipeline.slots=triplex": ["pipeline.slots=triplex", 'did you mean "duplex"'],
    "device=gpu": ["device=gpu", "cpu"],
    "data.augment=1": ["data.augment=1", "true or false"],
    "schedule.milestones=[0.5,x]": ["schedule.milestones", "list of numbers"],
    "schedule.milestones=[]": ["schedule.milestones"],
    "schedule.milestones=[0]": ["above 0"],
    "method.lr_rescheduling.epochs=3": ["both of steps (300) and epochs (3.0)"],
    "method.lr_rescheduling.steps=null": ["neither of steps"],
    "method.lr_rescheduling=3": ["group of settings", "method.lr_rescheduling.enabled"],
    "method.discrepancy_correction.decay=1": ["decay=1.0", "below 1"],
    "method.discrepancy_correction.decay=null": ["decay is not set"],
    "optimizer.clip=global": ["optimizer.clip_norm"],
    "optimizer.betas=[0.9]": ["optimizer.betas"],
    "optimizer.rate=${nothing}": ["nothing"],
    "hydra.verbose=true": ["Hydra"],
}


@pytest.mark.parametrize("override", WRONG)
def test_a_wrong_override_is_told_in_two_lines_with_the_remedy(override: str) -> None:
    with pytest.raises(UserError) as caught:
        load([override])
    message = str(caught.value)
    for part in WRONG[override]:
        assert part in message
    assert len(message.splitlines()) <= 2


@pytest.mark.parametrize(
    "overrides, reason",
    [
        (["method=pipedream", "method.discrepancy_correction.enabled=true"], "d = tau_fwd - tau_bkwd = 0"),
        (["method=gpipe", "method.lr_rescheduling.enabled=true"], "every delay tau is 0"),
        (["method=gpipe", "method.discrepancy_correction.enabled=true"], "every delay tau is 0"),
        (["method=gpipe", "method.sync_warmup.enabled=true"], "nothing to warm up"),
        (["method=hogwild", "method.discrepancy_correction.enabled=true"], "delays are random"),
        (["method=t1", "method.delay_scale=2"], "it is an option of hogwild and ringmaster only"),
        (["method=hogwild", "pipeline.recompute=2"], "random delays have no schedule"),
        (["method=gpipe", "pipeline.recompute=2"], "alternating slots only"),
        (["pipeline=alternating", "pipeline.recompute=2"], "no room for a recomputation"),
        (["pipeline.split=2", "pipeline.recompute=2"], "a split unit cannot be cut"),
        (["optimizer.momentum=0", "optimizer.nesterov=true"], "momentum above 0"),
        (["schedule=inverse_sqrt", "schedule.warmup_steps=0"], "at least 1"),
        (["pipeline.stages=3", "pipeline.boundaries=[0,2]"], "set one only"),
    ],
)
def test_pairs_that_do_not_go_together(overrides: list[str], reason: str) -> None:
    with pytest.raises(UserError, match=reason.replace("(", r"\(")):
        load(overrides)


def test_clip_global_is_allowed_in_emulation() -> None:
    cfg = resolved("optimizer.clip=global", "optimizer.clip_norm=1")
    assert (cfg.optimizer.clip, cfg.optimizer.clip_norm) == ("global", 1.0)


def test_more_stages_than_units_names_both_numbers() -> None:
    with pytest.raises(UserError, match=r"pipeline.stages=7.* only 6 weight units"):
        resolved("pipeline.stages=7")
    with pytest.raises(UserError, match="6 weight units"):
        resolved("pipeline.boundaries=[0,6]")


def test_boundaries_at_pieces() -> None:
    pieces = resolved("pipeline.cut=pieces").pipeline
    assert (pieces.stages, pieces.boundaries) == (4, (0, 2, 3, 5))
    assert config_hash(resolved("pipeline.cut=pieces")) == config_hash(resolved("pipeline.boundaries=[0,2,3,5]"))
    # Sizes of the pieces: 25, 72, 216, 10. In two stages, the larger is smallest when cut before the third.
    assert resolved("pipeline.cut=pieces", "pipeline.stages=2").pipeline.boundaries == (0, 3)
    with pytest.raises(UserError, match="pipeline.stages=5.*only 4 pieces"):
        resolved("pipeline.cut=pieces", "pipeline.stages=5")


def test_recomputation_cuts_at_pieces_and_sqrt_is_a_number_when_resolved() -> None:
    assert resolved("pipeline.recompute=2").pipeline.boundaries == (0, 2, 3, 5)
    assert resolved("pipeline.recompute=sqrt").pipeline.recompute == 2  # four stages
    assert resolved("pipeline.recompute=2", "pipeline.cut=units").pipeline.stages == 6
    with pytest.raises(UserError, match="pipeline.recompute=5.*only 4 stages"):
        resolved("pipeline.recompute=5")
    with pytest.raises(UserError, match="pipeline.recompute=cube.*sqrt"):
        resolved("pipeline.recompute=cube")


def test_what_decays_is_left_out_where_it_is_all_or_nothing_does() -> None:
    assert config_hash(resolved("optimizer.decay=all")) == config_hash(resolved())
    assert resolved("optimizer.decay=matrices", "optimizer.weight_decay=0").optimizer.decay is None
    assert resolved("optimizer.decay=matrices").optimizer.decay == "matrices"
    with pytest.raises(UserError, match="optimizer.decay=matrix.*all, matrices"):
        resolved("optimizer.decay=matrix")


def test_a_split_into_one_is_no_split() -> None:
    assert config_hash(resolved("pipeline.split=1")) == config_hash(resolved())


def test_resolving_fills_stages_and_turns_epochs_into_steps() -> None:
    cfg = resolved("method.lr_rescheduling.steps=null", "method.lr_rescheduling.epochs=1.5", steps=22)
    assert cfg.pipeline.boundaries == (0, 1, 2, 3, 4, 5)
    assert cfg.pipeline.stages == 6
    assert (cfg.method.lr_rescheduling.steps, cfg.method.lr_rescheduling.epochs) == (33, None)
    assert (cfg.method.sync_warmup.steps, cfg.method.sync_warmup.epochs) == (66, None)
    assert total_steps(cfg) == 25 * 22
    assert last_step(replace(cfg, max_steps=7)) == 7
    grouped = resolved("pipeline.stages=3")
    assert grouped.pipeline.boundaries is not None and len(grouped.pipeline.boundaries) == 3


def test_other_data_than_a_configuration_was_made_with_are_noticed() -> None:
    with pytest.raises(UserError, match="22 steps an epoch.*give 21"):
        resolve(resolved(), UNITS, 21)


def test_the_tree_is_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        load().seed = 3  # type: ignore[misc]


def test_the_hash_is_that_of_the_canonical_json() -> None:
    cfg = resolved()
    text = json.dumps(identity(cfg), sort_keys=True, separators=(",", ":"))
    assert config_hash(cfg) == hashlib.sha256(text.encode()).hexdigest()
    assert run_name(cfg) == f"digits-pipemare-demo-s0-{config_hash(cfg)[:8]}"


@pytest.mark.parametrize(
    "override",
    [
        "tracking=none",
        "tracking.uri=sqlite:///x.db",
        "max_steps=550",  # the run has no more
        "progress=none",
        "runs=/somewhere",
        "data.root=/elsewhere",
        "checkpoint.every_steps=3",
        "log_every=1",
        "threads=3",
        "optimizer.clip_norm=3",  # nothing is clipped
        "schedule.final_fraction=0.5",  # not a cosine
        "optimizer.betas=[0.5,0.5]",  # not Adam
    ],
)
def test_what_cannot_change_the_result_does_not_change_the_hash(override: str) -> None:
    assert config_hash(resolved(override)) == config_hash(resolved())


@pytest.mark.parametrize(
    "override",
    [
        "seed=1",
        "optimizer.rate=0.06",
        "epochs=24",
        "max_steps=3",
        "pipeline.microbatches=4",
        "pipeline.stages=3",
        "pipeline=alternating",
        "pipeline.recompute=3",
        "pipeline.split=2",
        "method=t1",
        "method.lr_rescheduling.steps=301",
        "data.augment=true",
        "data.validation=10",
        "model.width=4",
        "schedule.factor=0.2",
        "memory_format=channels_last",
        "evaluation.every_epochs=2",
    ],
)
def test_what_can_change_the_result_changes_the_hash(override: str) -> None:
    assert config_hash(resolved(override)) != config_hash(resolved())


def test_settings_of_what_is_switched_off_do_not_tell_runs_apart() -> None:
    plain = config_hash(resolved("method=async"))
    assert config_hash(resolved("method=async", "method.lr_rescheduling.steps=5")) == plain
    assert config_hash(resolved("method=async", "method.discrepancy_correction.decay=0.3")) == plain
    assert config_hash(resolved("method=async", "method.sync_warmup.epochs=1")) == plain


def test_epochs_and_the_steps_they_make_are_the_same_run() -> None:
    steps = resolved("method.sync_warmup.epochs=null", "method.sync_warmup.steps=66")
    assert config_hash(steps) == config_hash(resolved())


def test_a_subset_of_the_data_is_in_the_name_and_the_hash() -> None:
    whole, part = resolve(load(), UNITS, 22), resolve(load(), UNITS, 22, subset=700)
    assert run_name(part) == f"digits_700-pipemare-demo-s0-{config_hash(part)[:8]}"
    assert config_hash(part) != config_hash(whole) and run_name(whole).startswith("digits-")
    assert resolve(part, UNITS, 22, subset=700) == part
    with pytest.raises(UserError, match="data.subset=700.*the whole set"):
        resolve(part, UNITS, 22)


def test_what_other_programs_call_a_setting_leads_to_one_that_there_is() -> None:
    assert set(OTHER_WORDS.values()) <= set(setting_names(Config))
