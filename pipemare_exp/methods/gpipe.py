"""GPipe: synchronous pipeline-parallel training, flushed after every minibatch."""

from __future__ import annotations

from pipemare_exp.pipeline.method import Method


class GPipe(Method):
    """w_{t+1} = w_t - alpha * optimizer(grad f_t(w_t, w_t)): forward and backward both read version t.

    Weight memory W; utilization N/(N+P-1). Equal to plain training with N accumulated microbatches. Has no delay, so
    T1, T2 and T3 have nothing to act on.

    Reference: Huang et al., "GPipe", NeurIPS 2019.
    """

    label = "gpipe"
    cannot = {
        "lr_rescheduling_steps": "T1 divides by a power of the delay, and synchronous training has none",
        "decay": "T2 corrects for a delay, and synchronous training has none",
        "warmup_steps": "T3 is synchronous training before asynchronous, and this is synchronous throughout",
    }
