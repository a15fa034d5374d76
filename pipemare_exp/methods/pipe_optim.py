"""PipeOptim: the forward reads the weights that its own backward is predicted to find."""

from __future__ import annotations

from pipemare_exp.pipeline.predicting import Predicting
from pipemare_exp.pipeline.schedule.costs import Costs


class PipeOptim(Predicting):
    """w_{t+1} = w_t - alpha * optimizer(grad f_t(w_v - tau_i D_v, w_t)), D_v = rate * direction at version v; [code].

    The horizon tau_i = L_i/N reaches from a microbatch's forward to its backward at the same stage, which reads w_t as
    it is. The direction is the momentum buffer of SGD (the gradient without momentum), or Adam's
    m_hat / (sqrt(v_hat) + eps). Their code has the horizon P - i, with N = 1 in alternating slots.

    Weight memory W and D, one W; utilization 1.
    """

    name = "pipe_optim"
    title = "PipeOptim"
    order = 20
    reference = "Guan et al., PipeOptim, 2023 (arXiv 2312.00839)"
    costs = {"pipe_optim": Costs(buffers=1.0)}

    def horizons(self) -> tuple[list[float], list[float]]:
        return list(self.tau), [0.0] * self.stages
