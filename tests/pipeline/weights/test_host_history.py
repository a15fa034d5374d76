"""Old versions in host memory: the same bits as on the device, and fetched before they are asked for."""

import copy

import pytest
import torch

from pipemare_exp.methods.hogwild import Hogwild
from pipemare_exp.pipeline.weights.host_history import HostHistory
from tests.pipeline.reference import SGD
from tests.pipeline.toys import METHODS, emulator, loss, minibatches, mixed_net, rule, same

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
SHAPE, N, CUT = (2, 6, 6), 3, [0, 1, 2, 3, 4, 5]


def built(how, device="cpu", history="host", **options):
    net = mixed_net(torch.float32).to(device)
    how = rule(how, 6, N, "duplex", warmup=3) if isinstance(how, str) else how
    return emulator(net, torch.zeros(2, *SHAPE, device=device), CUT, how, SGD(0.9), N, history=history, **options)


def batches(steps, device):
    for minibatch in minibatches(SHAPE, N, steps, torch.float32):
        yield [None if one is None else (one[0].to(device), one[1].to(device), one[2]) for one in minibatch]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("label", [*METHODS, "hogwild"])
def test_bit_for_bit(label, device):
    plain, host = (
        built(Hogwild(draw="microbatch") if label == "hogwild" else label, device, history)
        for history in ("device", "host")
    )
    for index, minibatch in enumerate(batches(14, device)):
        assert float(plain.step(minibatch, loss, 0.02)) == float(host.step(minibatch, loss, 0.02))
        if index == 6:  # a checkpoint of either is the other's
            plain_state, host_state = copy.deepcopy(plain.state_dict()), copy.deepcopy(host.state_dict())
            cpu = [t.cpu() if isinstance(t, torch.Tensor) else t for t in plain_state["history"]["kept"]]
            assert same(cpu, [t.cpu() for t in host_state["history"]["kept"]])
            plain.load_state_dict(host_state)
            host.load_state_dict(plain_state)
    assert all(map(torch.equal, plain.flat_weights(), host.flat_weights()))


def test_what_is_where():
    plain, host = built("t1+t2", history="device"), built("t1+t2")
    rings = [ring for ring in host.history.rings if ring is not None]
    kept = [flat.nbytes for flat, ring in zip(host.flat.stages, host.history.rings, strict=True) if ring is not None]
    assert isinstance(host.history, HostHistory)
    assert host.memory()["host"] == plain.memory()["history"] == sum(ring.data.nbytes for ring in rings)
    assert host.memory()["history"] == 2 * sum(kept)


def test_forwards_after_the_first_find_their_versions_fetched():
    """What `version` has to fetch by itself within a step is what its first microbatch reads."""
    made = built("async")
    late = []
    version = HostHistory.version

    def noted(self, stage, wanted):
        if self.rings[stage] is not None and wanted != self.current and self._fetched[stage] != wanted:
            late.append(stage)
        return version(self, stage, wanted)

    for index, minibatch in enumerate(minibatches(SHAPE, N, 12, torch.float32, empty=False)):
        late.clear()
        made.history.version = noted.__get__(made.history)
        made.step(minibatch, loss, 0.02)
        if index > 5:
            assert late and len(late) == len(set(late))  # once a stage: in microbatch 0


def test_a_version_that_is_not_kept_is_an_error():
    made = built("async")
    with pytest.raises(LookupError):
        made.history.version(0, 1)
    without = built("gpipe")
    with pytest.raises(LookupError):
        without.history.change(0)
