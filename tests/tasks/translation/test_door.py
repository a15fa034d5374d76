"""fairseq behind its door: what its import would do to the process, and that it does not."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def python(code, *arguments):
    """Run `code` in a fresh interpreter, where fairseq has not been imported yet."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, env=environment, timeout=120
    )


def test_import_leaves_the_process_as_it_was():
    code = """
import logging
from hydra.core.config_store import ConfigStore
import torch
before = repr(ConfigStore.instance().repo), logging.getLogger().level, list(logging.getLogger().handlers)
import pipemare_exp.models.fairseq_door as door
import sys
assert "fairseq" in sys.modules
assert before == (repr(ConfigStore.instance().repo), logging.getLogger().level, list(logging.getLogger().handlers))
assert logging.getLogger("fairseq").getEffectiveLevel() >= logging.WARNING
print("same")
"""
    done = python(code)
    assert (done.stdout, done.stderr, done.returncode) == ("same\n", "", 0)


def test_fairseq_by_itself_would_register_names():
    code = """
from hydra.core.config_store import ConfigStore
before = set(ConfigStore.instance().repo)
import fairseq
print(len(set(ConfigStore.instance().repo) - before))
"""
    assert int(python(code).stdout.strip().splitlines()[-1]) > 5, "the fence would be tested against nothing"


def test_images_do_not_import_fairseq():
    code = """
import sys
import pipemare_exp.tasks, pipemare_exp.models, pipemare_exp.data
pipemare_exp.models.unit_sizes("digits_resnet")
print([name for name in sys.modules if name.startswith("fairseq")])
"""
    assert python(code).stdout == "[]\n"


def test_every_job_of_a_multirun_composes(tmp_path):
    """fairseq's names in Hydra's store would break the second job, once the first has imported it."""
    code = """
import hydra, sys
@hydra.main(version_base="1.3", config_path=sys.argv.pop(1), config_name="config")
def job(cfg):
    import pipemare_exp.models.fairseq_door
    print("job", cfg.seed, cfg.task.name, cfg.method.name, cfg.model.layers, cfg.optimizer.name, cfg.schedule.name)
sys.argv[0] = __file__ if "__file__" in globals() else "job.py"
job()
"""
    script = tmp_path / "job.py"
    script.write_text(code)
    done = subprocess.run(
        [sys.executable, str(script), str(ROOT / "configs"), "-m", "task=numerals", "method=gpipe,pipemare",
         "seed=0,1", f"hydra.sweep.dir={tmp_path}/out"],
        capture_output=True, text=True, cwd=tmp_path, timeout=240,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    jobs = [line for line in done.stdout.splitlines() if line.startswith("job ")]
    assert done.returncode == 0, done.stderr[-2000:]
    assert jobs == [
        f"job {seed} numerals {method} 2 adamw inverse_sqrt" for method in ("gpipe", "pipemare") for seed in (0, 1)
    ]


def test_default_configurations_are_not_shared():
    from pipemare_exp.models import fairseq_door as door
    from pipemare_exp.models import transformer

    # Not before the door: without its fence the import would break every configuration composed later on.
    TransformerConfig = importlib.import_module("fairseq.models.transformer").TransformerConfig

    words = door.Dictionary()
    words.add_symbol("word")
    before = TransformerConfig().encoder.layers, TransformerConfig().dropout
    small = transformer.build(words, words, layers=1, width=8, heads=2, dropout=0.4, tying="all")
    assert (TransformerConfig().encoder.layers, TransformerConfig().dropout) == before
    other = transformer.build(words, words, layers=2, width=8, heads=2)
    assert len(small.encoder.layers) == 1 and len(other.encoder.layers) == 2
    assert small.decoder.output_projection.weight is small.encoder.embed_tokens.weight
    assert other.decoder.output_projection.weight is not other.decoder.embed_tokens.weight
