"""Optimizers over tensors of their own shape, and what an optimizer may not have of its own."""

import copy
from functools import partial

import pytest
import torch

from pipemare_exp import models
from pipemare_exp.errors import UserError
from pipemare_exp.pipeline.weights.optimizer_groups import Shaped
from tests.pipeline.toys import dense_net, emulator, loss, minibatches, mixed_net, rule, same

SHAPE, N = (2, 6, 6), 3
SGD = partial(torch.optim.SGD, lr=0.0, momentum=0.9, nesterov=True, weight_decay=0.01)


def built(make, label="t1+t2", boundaries=range(6), dtype=torch.float64, seed=0, **options):
    example = torch.zeros(2, *SHAPE, dtype=dtype)
    how = rule(label, len(boundaries), N, "duplex", warmup=3)
    return emulator(mixed_net(dtype, seed), example, boundaries, how, make, N, **options)


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("boundaries", [range(6), [0, 2, 5]])
@pytest.mark.parametrize("label", ["gpipe", "t1+t2+t3"])
def test_an_optimizer_over_shapes_equals_the_flat_one(label, boundaries, dtype, foreach):
    make = partial(SGD, foreach=foreach)
    flat, shaped = (built(one, label, boundaries, dtype, clip=("stage", 0.5)) for one in (make, Shaped(make)))
    for minibatch in minibatches(SHAPE, N, 12, dtype):
        assert torch.equal(flat.step(minibatch, loss, 0.05), shaped.step(minibatch, loss, 0.05))
    assert all(map(torch.equal, flat.flat_weights(), shaped.flat_weights()))


def test_an_optimizer_over_shapes_goes_on_from_a_checkpoint():
    """In another process: what is loaded is a copy, and the emulator that loads it has made other steps."""
    through, again = built(Shaped(SGD)), built(Shaped(SGD), seed=5)
    given = list(minibatches(SHAPE, N, 14))
    again.step(given[3], loss, 0.05)
    for minibatch in given[:7]:
        through.step(minibatch, loss, 0.05)
    again.load_state_dict(copy.deepcopy(through.state_dict()))
    for minibatch in given[7:]:
        assert torch.equal(through.step(minibatch, loss, 0.05), again.step(minibatch, loss, 0.05))
    assert same(through.state_dict(), again.state_dict())


def test_tensors_keep_the_layout_of_the_model():
    """Convolutions in channels-last are given as such, and are stepped to the same bits."""
    made = []
    for make in (SGD, Shaped(SGD)):
        torch.manual_seed(0)
        net = models.build("resnet20", width=4).to(memory_format=torch.channels_last).train()
        images = torch.randn(4, 3, 32, 32).to(memory_format=torch.channels_last)
        made.append(emulator(net, images, range(0, 43, 4), rule("t2", 11, 2, "duplex"), make, 2))
    for _ in range(3):
        given = list(zip(images.split(2), torch.randint(0, 3, (4,)).split(2), [4] * 2, strict=True))
        assert torch.equal(*(one.step(given, loss, 0.1) for one in made))
    assert all(map(torch.equal, *(one.flat_weights() for one in made)))
    first = made[1].optimizer.param_groups[0]["params"][0]
    assert first.shape == made[1].model.get_parameter(made[1].pipeline.stage_parameters[0][0]).shape
    assert first.is_contiguous(memory_format=torch.channels_last)


def test_what_an_optimizer_over_shapes_is_given():
    """Views of the live weights and the summed gradients, one per parameter, in forward order."""
    net = dense_net()
    made = emulator(net, torch.zeros(1, 5).double(), [0, 2], rule("async", 2, 2, "duplex"), Shaped(SGD), 2)
    groups = [group["params"] for group in made.optimizer.param_groups]
    names = made.pipeline.stage_parameters
    assert [len(group) for group in groups] == [len(stage) for stage in names] == [4, 4]
    for group, stage in zip(groups, names, strict=True):
        for given, name in zip(group, stage, strict=True):
            mine = net.get_parameter(name)
            assert given.shape == mine.shape and given.data_ptr() == mine.data_ptr()
            assert given.grad.shape == mine.shape and given.grad.data_ptr() == mine.grad.data_ptr()


def test_split_stages_have_no_whole_tensors():
    with pytest.raises(UserError, match=r"pipeline.split=2.*whole tensors"):
        emulator(
            mixed_net(), torch.zeros(2, *SHAPE).double(), [0], rule("async", 2, 2, "duplex"), Shaped(SGD), 2, split=2
        )


def test_a_rate_of_its_own_is_refused():
    def make(groups):
        groups[1]["lr"] = 0.3
        return SGD(groups)

    with pytest.raises(UserError, match=r"lr=0.3.*given to step\(\)"):
        built(make)


def test_groups_of_its_own_are_refused():
    with pytest.raises(UserError, match="1 parameter groups of its own.*the 6 that it is made from"):
        built(lambda groups: SGD([p for group in groups for p in group["params"]]))
    with pytest.raises(UserError, match="6 parameter groups of its own"):
        built(lambda groups: SGD(list(reversed(groups))))


def test_a_default_rate_of_torch_is_no_rate_of_its_own():
    """`torch.optim.Adam(groups)` has 1e-3 as the default of groups without a rate, and these have one."""
    made = built(torch.optim.Adam)
    made.step(next(minibatches(SHAPE, N, 1, empty=False)), loss, 0.05)
    assert made.optimizer.param_groups[0]["lr"] == made.rates[0] != 1e-3
