"""The four proofs that every method has, and that none is without them (see proofs.py)."""

import copy
import io
import re
from pathlib import Path

import pytest
import torch

from pipemare_exp import methods
from pipemare_exp.errors import UserError
from pipemare_exp.pipeline.method import RUNTIME, T1, T3
from pipemare_exp.pipeline.runtime.routes import columns_of
from tests.methods.proofs import PROOFS
from tests.pipeline.reference import Rule, dense_gradient
from tests.pipeline.runtime.runtime_cases import Case
from tests.pipeline.runtime.runtime_groups import run_cases
from tests.pipeline.runtime.test_equality import check
from tests.pipeline.toys import cut, dense_net, emulator, loss, minibatches, named_units, same

ROOT = Path(__file__).resolve().parents[2]
STEPS = 40
CUTS = {1: [0], 2: [0, 2], 3: [0, 1, 3], 4: [0, 1, 2, 3]}

every_method = pytest.mark.parametrize("name", PROOFS)


def test_every_method_has_its_row():
    assert set(PROOFS) == set(methods.METHODS)


@every_method
def test_every_row_names_a_test_of_its_own_exact_case(name):
    path, _, test = PROOFS[name].own.partition("::")
    assert re.search(rf"^def {test}\(", (ROOT / path).read_text(), re.M)


def switches(name, on):
    """T1 over K = 12 and T3 of M = 5 steps, what the method takes of them; nothing where not `on`."""
    takes = methods.find(name).takes
    return (12 if on and T1 in takes else 0), (5 if on and T3 in takes else 0)


def made(name, K=0, M=0, **options):
    return methods.build(name, **{"lr_rescheduling_steps": K, "warmup_steps": M, **PROOFS[name].options, **options})


def slow_trainer(name, net, stages, N, slots, optimizer, K, M):
    proof = PROOFS[name]
    rule = Rule(proof.kind, stages, N, slots, K, proof.options.get("decay"), M)
    weights = {key: w.detach().clone() for key, w in net.named_parameters()}
    return proof.trainer(weights, cut(named_units(net), CUTS[stages]), rule, optimizer, dense_gradient)


def slots_of(name):
    return methods.find(name).only_slots or "duplex"


COMPARED = [
    pytest.param(name, optimizer, shape, id=f"{name}-{type(optimizer).__name__}-P{shape[0]}N{shape[1]}")
    for name, proof in PROOFS.items()
    for optimizer in proof.optimizers
    for shape in proof.shapes
]


@pytest.mark.parametrize("name, optimizer, shape", COMPARED)
def test_forty_steps_against_the_rule_written_anew(name, optimizer, shape):
    """Weights, losses and rates of every step, the fill included; with more than one microbatch T1 and T3 are on."""
    (stages, N), net = shape, dense_net()
    K, M = switches(name, on=N > 1)
    slow = slow_trainer(name, net, stages, N, slots_of(name), optimizer, K, M)
    fast = emulator(net, torch.zeros(2, 5).double(), CUTS[stages], made(name, K, M), optimizer, N, slots=slots_of(name))
    for step, minibatch in enumerate(minibatches((5,), N, STEPS)):
        alpha = 0.02 * (1 + 0.5 * (step % 3)) * (0.2 if optimizer is not PROOFS[name].optimizers[0] else 1.0)
        got, expected = float(fast.step(minibatch, loss, alpha)), slow.step(minibatch, alpha)
        assert got == pytest.approx(expected, rel=PROOFS[name].tolerance, abs=PROOFS[name].tolerance), step
        now = slow.weights()
        for s, flat in enumerate(fast.flat_weights()):
            whole = torch.cat([now[key].flatten() for key in slow.stages[s]])
            torch.testing.assert_close(flat, whole, rtol=0, atol=PROOFS[name].tolerance)
        assert fast.rates == pytest.approx(slow.rates[step], rel=1e-12)
    assert max(float((slow.versions[-1][key] - slow.versions[0][key]).abs().max()) for key in slow.versions[0]) > 1e-2


@every_method
def test_without_delay_it_is_the_synchronous_training_bit_for_bit(name):
    """P = 1 in alternating slots, where every L_s is 0, or as the row says."""
    proof, N = PROOFS[name], 4
    data = list(minibatches((5,), N, 12, torch.float32))
    for optimizer in proof.optimizers:
        ends = []
        for how in (made(name, **proof.zero), methods.build("gpipe")):
            net = dense_net().float()
            fast = emulator(net, torch.zeros(2, 5), [0], how, optimizer, N, slots="alternating")
            for minibatch in data:
                fast.step(minibatch, loss, 0.02)
            ends.append(fast.flat_weights())
        assert same(*ends)


@every_method
def test_a_resumed_run_goes_on_bit_for_bit(name):
    """From a file, in an emulator around other weights with a past of its own; stopped in the fill and later."""
    proof, steps = PROOFS[name], 16
    stages, N = proof.shapes[-1]
    K, M = switches(name, on=True)
    data = list(minibatches((5,), N, steps, torch.float32))
    for optimizer in proof.optimizers:

        def build(seed, optimizer=optimizer):
            net = dense_net(seed).float()
            return emulator(net, torch.zeros(2, 5), CUTS[stages], made(name, K, M), optimizer, N, slots=slots_of(name))

        fast, saved = build(0), {}
        for step, minibatch in enumerate(data):
            if step in (2, 6, 11):
                saved[step] = io.BytesIO()
                torch.save(fast.state_dict(), saved[step])
            fast.step(minibatch, loss, 0.02)
        end = copy.deepcopy([fast.flat_weights(), fast.state_dict()])
        for step, file in saved.items():
            file.seek(0)
            other = build(9)
            for minibatch in data[:2]:
                other.step(minibatch, loss, 0.02)
            other.load_state_dict(torch.load(file, weights_only=True))
            for minibatch in data[step:]:
                other.step(minibatch, loss, 0.02)
            assert same([other.flat_weights(), other.state_dict()], end), step


@every_method
def test_every_way_to_keep_and_read_weights_gives_the_same_bits(name):
    """Backward weights copied over the live ones or read beside them; old versions on the device or on the host."""
    proof, (stages, N) = PROOFS[name], PROOFS[name].shapes[-1]
    K, M = switches(name, on=True)
    data, ends = list(minibatches((5,), N, 14, torch.float32)), []
    for way in ({"beside": False}, {"beside": True}, {"beside": False, "history": "host"}):
        net, how = dense_net().float(), made(name, K, M)
        fast = emulator(net, torch.zeros(2, 5), CUTS[stages], how, proof.optimizers[0], N, slots=slots_of(name), **way)
        for minibatch in data:
            fast.step(minibatch, loss, 0.02)
        ends.append(fast.flat_weights())
    assert same(ends[0], ends[1]) and same(ends[0], ends[2])


IN_RUNTIME = [
    Case(f"proof:{name}", microbatches=4, slots=slots_of(name), steps=14, resume=resume, optimizer=PROOFS[name].named)
    for name in PROOFS
    if RUNTIME in methods.find(name).takes
    for resume in (None, 7)
]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("proofs")
    run_cases(IN_RUNTIME, 2, folder)
    return folder


@pytest.mark.parametrize("case", IN_RUNTIME, ids=lambda case: case.name)
def test_the_runtime_equals_the_emulator_bit_for_bit(case, ranks):
    check(case, ranks)


@pytest.mark.parametrize("name", [name for name in PROOFS if RUNTIME not in methods.find(name).takes])
def test_the_runtime_is_refused_with_the_reason(name):
    assert methods.find(name).cannot[RUNTIME]
    with pytest.raises(UserError, match=f"{name}.*engine=runtime.*take engine=emulator"):
        columns_of(made(name), 2, 2, 10, "duplex")
