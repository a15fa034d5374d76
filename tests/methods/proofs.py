"""How each method is proven: one row per method, which test_proofs.py runs and docs/methods.md refers to.

Zero delay, 40 steps against the rule written anew, resume and the runtime are the same tests for all; `own` names the
test of what is exact for this method alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.methods import rules
from tests.methods import rules_of_updates as updates
from tests.pipeline.reference import SGD, Adam, NAdam, Trainer

MOMENTUM = SGD(0.9, weight_decay=0.01)
ADAMW = Adam((0.9, 0.98), 1e-5, weight_decay=0.1, decoupled=True)
NADAMW = NAdam((0.99, 0.98), 1e-5, weight_decay=0.1)


@dataclass(frozen=True)
class Proof:
    """A row.

    - `trainer`: the rule written anew, a slow trainer; `kind`: that rule's name where it is one of reference.py's own;
    - `own`: file::test of its own exact case;
    - `options`: its options in these tests; `zero`: those that leave no delay at P = 1 in alternating slots;
    - `shapes`: (P, N) of the comparison of 40 steps;
    - `optimizers`: those it is tried with;
    - `tolerance`: how far a weight may be from the slow trainer's.
    """

    trainer: type[Trainer]
    own: str
    kind: str = "pipedream"
    options: Mapping[str, Any] = field(default_factory=dict)
    zero: Mapping[str, Any] = field(default_factory=dict)
    shapes: tuple[tuple[int, int], ...] = ((4, 1), (4, 4))
    optimizers: tuple[SGD | Adam, ...] = (MOMENTUM, ADAMW)
    tolerance: float = 1e-9

    @property
    def named(self) -> str:
        """The first of them by the name that a configuration gives it."""
        return {SGD: "sgd", Adam: "adamw", NAdam: "nadamw"}[type(self.optimizers[0])]


OWN = "tests/methods/"
PROOFS: dict[str, Proof] = {
    "gpipe": Proof(
        Trainer, "tests/pipeline/emulator/test_transparency.py::test_equals_plain_accumulation", kind="gpipe"
    ),
    "pipedream": Proof(Trainer, "tests/pipeline/emulator/test_versions.py::test_backward_reads_what_forward_read"),
    "pipemare": Proof(
        Trainer,
        "tests/pipeline/emulator/test_correction.py::test_linear_drift_is_estimated_exactly",
        kind="pipemare",
        options={"decay": 0.3},
    ),
    "hogwild": Proof(rules.Drawn, "tests/pipeline/emulator/test_hogwild.py::test_versions_read_by_the_passes"),
    "fixed_delay": Proof(
        rules.fixed(3),
        OWN + "test_uniform_delay.py::test_edge_of_stability_is_that_of_lemma_1",
        options={"delay": 3},
        zero={"delay": 0},
    ),
    "gradient_fifo": Proof(
        rules.fifo(3),
        OWN + "test_uniform_delay.py::test_a_gradient_enters_d_steps_late",
        options={"delay": 3},
        zero={"delay": 0},
    ),
    "two_bw": Proof(
        rules.TwoVersions,
        OWN + "test_uniform_delay.py::test_edge_of_stability_is_that_of_lemma_1",
        zero={"warmup_steps": 99},  # it is late by one step at P = 1 too
        shapes=((1, 1), (2, 4)),
    ),
    "paci": Proof(rules.NoStash, OWN + "test_paci.py::test_its_worker_loop_reads_what_the_method_reads"),
    "plain_warmup": Proof(
        rules.Ramp,
        OWN + "test_rates.py::test_plain_warm_up_is_one_line_for_all_stages",
        options={"ramp_steps": 12},
        zero={"ramp_steps": 0},
    ),
    "pipe_optim": Proof(rules.Predicted, OWN + "test_predicting.py::test_exact_where_the_gradient_is_constant"),
    "spectrain": Proof(rules.Spec, OWN + "test_predicting.py::test_exact_where_the_gradient_is_constant"),
    "spectrain_stash": Proof(
        rules.SpecStash,
        OWN + "test_predicting.py::test_exact_where_the_gradient_is_constant",
        zero={"warmup_steps": 99},  # it looks one microbatch ahead at P = 1 too
    ),
    "xpipe": Proof(rules.Bellwether, OWN + "test_predicting.py::test_one_prediction_for_a_minibatch"),
    "msnag": Proof(rules.Coasting, OWN + "test_predicting.py::test_coasting_is_exact_where_the_gradient_is_zero"),
    "msnag_stash": Proof(
        rules.CoastingStash, OWN + "test_predicting.py::test_coasting_is_exact_where_the_gradient_is_zero"
    ),
    "dc_asgd": Proof(
        updates.Compensated,
        OWN + "test_transformed.py::test_compensation_leaves_an_error_of_second_order",
        options={"strength": 0.5},
    ),
    "dc_asgd_adaptive": Proof(
        updates.CompensatedAdaptively,
        OWN + "test_transformed.py::test_adaptive_strength_of_a_constant_gradient",
    ),
    "gap_aware": Proof(updates.Damped, OWN + "test_transformed.py::test_a_gap_of_d_usual_steps_divides_by_one_and_d"),
    "nesterov": Proof(
        updates.Discounted,
        OWN + "test_transformed.py::test_first_steps_of_nadam_by_hand",
        options={"rate_power": 0.5},
        optimizers=(NADAMW,),
        tolerance=1e-7,  # torch's NAdam keeps the product of its momenta in single precision
    ),
    "ringmaster": Proof(
        updates.ThrownAway,
        OWN + "test_transformed.py::test_without_a_threshold_it_is_hogwild",
        options={"threshold": 2},
    ),
    "amdp": Proof(updates.Early, OWN + "test_transformed.py::test_amdp_reads_by_hand", shapes=((2, 1), (4, 4))),
}
