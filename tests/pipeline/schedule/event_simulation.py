"""A pipeline simulated slot by slot from messages: the oracle for schedules and versions.

It knows nothing of the package. A stage only sees its inbox (activations from the stage before, gradients
from the one after, both usable from the slot after they were sent) and a local rule for what to run next.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Stage:
    activations: list[int] = field(default_factory=list)
    gradients: list[int] = field(default_factory=list)
    forwards: int = 0
    backwards: int = 0
    version: int = 0
    read_by_forward: dict[int, int] = field(default_factory=dict)
    version_at_backward: dict[int, int] = field(default_factory=dict)
    forward_slot: dict[int, int] = field(default_factory=dict)
    backward_slot: dict[int, int] = field(default_factory=dict)
    update_slot: dict[int, int] = field(default_factory=dict)
    owed: list[int] = field(default_factory=list)
    weight_gradients: int = 0
    weight_gradient_slot: dict[int, int] = field(default_factory=dict)


def simulate(
    stages: int, per_step: int, steps: int, slots: str, start: int = 0, defer: int | None = None
) -> list[Stage]:
    """Runs every microbatch through; `slots` duplex, alternating, or flushed (GPipe's order, all steps).

    `defer`: after the flushed steps a backward only makes the gradient that is sent on, and owes the weights' gradient.
    A stage that owes more than `defer` of them pays one before it does anything else, and the rest once no backward is
    left. An update waits until the gradients of its minibatch are paid.
    """
    total = steps * per_step
    flushed = total if slots == "flushed" else start * per_step
    pipeline = [Stage() for _ in range(stages)]
    fed = 0
    slot = 0
    while any(stage.backwards < total or stage.owed for stage in pipeline):
        # The data loader: one microbatch a slot; a flushed minibatch and the first asynchronous one wait
        # until everything before them has left the pipeline.
        waits = fed <= flushed and fed % per_step == 0 or fed == flushed
        if fed < total and not (waits and any(stage.backwards < fed for stage in pipeline)):
            pipeline[0].activations.append(fed)
            fed += 1
        sent: list[tuple[int, str, int]] = []
        for s, stage in enumerate(pipeline):
            if stage.backwards < flushed:  # every forward of the minibatch before its first backward
                may_forward = True
                may_backward = stage.forwards >= (stage.backwards // per_step + 1) * per_step
                both = False
            elif slots == "duplex":
                may_forward = may_backward = both = True
            else:  # one forward, one backward: at most P - s microbatches under way, backwards first
                may_forward = stage.forwards - stage.backwards < stages - s
                may_backward, both = True, False
            pays = bool(stage.owed) and defer is not None and (len(stage.owed) > defer or stage.backwards == total)
            if pays:
                stage.weight_gradient_slot[stage.owed.pop(0)] = slot
                stage.weight_gradients += 1
                _update_if_complete(stage, flushed + stage.weight_gradients, per_step, slot)
                continue
            # What was usable at the beginning of the slot: not what this stage is about to send.
            gradient = stage.gradients[0] if stage.gradients and may_backward else None
            activation = stage.activations[0] if stage.activations and may_forward else None
            if gradient is not None and not both:
                activation = None
            if activation is not None:
                g = stage.activations.pop(0)
                stage.forwards += 1
                stage.read_by_forward[g] = stage.version
                stage.forward_slot[g] = slot
                sent.append((s + 1, "activation", g) if s < stages - 1 else (s, "gradient", g))
            if gradient is not None:
                g = stage.gradients.pop(0)
                stage.backwards += 1
                stage.version_at_backward[g] = stage.version
                stage.backward_slot[g] = slot
                if s:
                    sent.append((s - 1, "gradient", g))
                if defer is not None and g >= flushed:
                    stage.owed.append(g)
                else:
                    _update_if_complete(stage, stage.backwards, per_step, slot)
        for receiver, kind, g in sent:
            box = pipeline[receiver].activations if kind == "activation" else pipeline[receiver].gradients
            box.append(g)
        slot += 1
        assert slot < 10 * (total + stages) * (stages + 1), "the simulated pipeline is stuck"
    return pipeline


def _update_if_complete(stage: Stage, gradients: int, per_step: int, slot: int) -> None:
    if gradients % per_step == 0:
        stage.update_slot[stage.version] = slot
        stage.version += 1


def by_step(values: dict[int, int], per_step: int) -> list[list[int]]:
    """{g: value} as [step][microbatch]."""
    flat = [values[g] for g in sorted(values)]
    return [flat[i : i + per_step] for i in range(0, len(flat), per_step)]
