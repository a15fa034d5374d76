"""PACI's worker loop, simulated, against the versions that the method prescribes."""

import itertools
import math

import pytest

from tests.methods.binding import bound


def worker_loops(stages, a, total):
    """Each worker s takes a waiting gradient before all else; else a waiting activation while fewer than P - s
    microbatches are in flight; updates after each a-th backward. What one sends, another has in the next round.
    Returns per worker {microbatch: (version at its forward, version at its backward)}."""
    activations = [list(range(total)), *([] for _ in range(stages - 1))]
    gradients = [[] for _ in range(stages)]
    version, backwards, flying = [0] * stages, [0] * stages, [0] * stages
    seen = [{} for _ in range(stages)]
    while min(backwards) < total:
        sent = []
        for s in range(stages):
            if gradients[s]:
                g = gradients[s].pop(0)
                seen[s][g] = seen[s][g], version[s]
                flying[s] -= 1
                backwards[s] += 1
                version[s] += backwards[s] % a == 0
                if s:
                    sent.append((gradients[s - 1], g))
            elif activations[s] and flying[s] < stages - s:
                g = activations[s].pop(0)
                seen[s][g] = version[s]
                flying[s] += 1
                sent.append((activations[s + 1] if s < stages - 1 else gradients[s], g))
        for box, g in sent:
            box.append(g)
    return seen


@pytest.mark.parametrize("a", [1, 2, 3, 4, 7])
def test_its_worker_loop_reads_what_the_method_reads(a):
    for stages, steps in itertools.product((1, 2, 3, 5, 8), (12,)):
        method, seen = bound("paci", stages, a), worker_loops(stages, a, steps * a)
        for s, g in itertools.product(range(stages), range(steps * a)):
            step, n = divmod(g, a)
            forward, backward = method.forward(step, n)[s], method.backward(step, n)[s]
            assert (forward.version, backward.version) == seen[s][g] and forward.buffer is backward.buffer is None
            assert backward.version - forward.version <= math.ceil((stages - 1) / a)


def test_it_is_pipemare_with_nothing_switched_on_in_alternating_slots():
    paci, other = bound("paci", 6, 2, "duplex"), bound("pipemare", 6, 2, "alternating")
    for step, n in itertools.product(range(9), range(2)):
        assert paci.forward(step, n) == other.forward(step, n) and paci.backward(step, n) == other.backward(step, n)
