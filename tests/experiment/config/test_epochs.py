"""An epoch's end is nothing to the pipeline."""

from __future__ import annotations

from pipemare_exp.experiment.config.load import load
from pipemare_exp.experiment.training import session as train
from pipemare_exp.methods.pipemare import PipeMare


def test_the_pipeline_is_not_flushed_at_an_epochs_end(tmp_path, monkeypatch):
    """In the first step of the second epoch the delays are those of a full pipeline, not those of a new one."""
    overrides = [
        "task=digits",
        "method=async",
        "tracking=none",
        "progress=none",
        "data.batch_size=700",
        "model.width=2",
    ]
    overrides += ["epochs=8", "max_steps=14"]
    read: dict[int, list[int]] = {}
    forward = PipeMare.forward

    def spy(self, step, microbatch):
        reads = forward(self, step, microbatch)
        if microbatch == 0:
            read[step] = [step - r.version for r in reads]
        return reads

    monkeypatch.setattr(PipeMare, "forward", spy)
    result = train.train(load(overrides), overrides, runs=tmp_path)
    assert result.run.result is not None
    steps_per_epoch = 2
    full = [-(-(2 * (42 - s) + 1) // 8) for s in range(43)]  # ceil(L/N)
    assert read[13] == full and read[12] == full
    assert 12 % steps_per_epoch == 0
