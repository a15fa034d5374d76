"""Backward weights beside the live ones, and staged copies, give the bits that copying stage by stage gives."""

import copy
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from pipemare_exp import methods, models
from pipemare_exp.pipeline.emulator.backward_weights import WORTHWHILE
from pipemare_exp.pipeline.emulator.ways import Beside, Copying
from pipemare_exp.pipeline.weights import staged_copies
from pipemare_exp.pipeline.weights.history import DeviceHistory
from tests.pipeline.reference import SGD, Adam
from tests.pipeline.toys import METHODS, dense_net, emulator, loss, minibatches, mixed_net, rule, same

STEPS = 14
MIXED = (2, 6, 6)


def three(make, shape, how, optimizer, microbatches, boundaries, **options):
    """The same training three times: copying stage by stage, staged copies, and backward weights beside."""
    example = torch.zeros(2, *shape, dtype=torch.float64)
    made = []
    for fewest, beside in ((1000, False), (1, False), (1, True)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(staged_copies, "FEWEST", fewest)
            made.append(emulator(make(), example, boundaries, how(), optimizer, microbatches, beside=beside, **options))
    assert [one.weights.staged is None for one in made] == [True, False, True]
    assert [isinstance(one.way, Beside) for one in made] == [False, False, True]
    return made


@pytest.fixture(autouse=True)
def staged_copies_for_all(monkeypatch):
    monkeypatch.setattr(staged_copies, "FEWEST", 1)


@pytest.mark.parametrize("slots", ["duplex", "alternating"])
@pytest.mark.parametrize("microbatches", [1, 3, 8])
@pytest.mark.parametrize("label", METHODS)
def test_the_same_bits_as_copying(label, microbatches, slots):
    def how():
        return rule(label, 6, microbatches, slots, k=9, warmup=3)

    optimizer = Adam((0.8, 0.95), 1e-5, weight_decay=0.05) if microbatches == 3 else SGD(0.9, weight_decay=0.01)
    copying, *others = three(mixed_net, MIXED, how, optimizer, microbatches, range(6))
    for minibatch in minibatches(MIXED, microbatches, STEPS):
        expected = copying.step(minibatch, loss, 0.05)
        for other in others:
            assert torch.equal(expected, other.step(minibatch, loss, 0.05))
            assert same(copying.state_dict(), other.state_dict())
    corrected_or_late = label not in ("gpipe", "pipedream")
    assert others[0].memory()["staged"] == 2 * corrected_or_late * copying.memory()["weights"]


@pytest.mark.parametrize("backward", ["same", "current"])
@pytest.mark.parametrize("draw", ["step", "microbatch"])
def test_random_delays_too(draw, backward):
    def how():
        return methods.build("hogwild", max_delay=3, backward=backward, draw=draw)

    made = three(dense_net, (5,), how, SGD(0.9), 4, range(4))
    for minibatch in minibatches((5,), 4, STEPS):
        first, *others = (one.step(minibatch, loss, 0.05) for one in made)
        assert all(torch.equal(first, other) for other in others)
    assert all(same(made[0].state_dict(), other.state_dict()) for other in made[1:])


def test_looking_at_the_weights_and_resuming_in_between():
    def how():
        return rule("t1+t2+t3", 6, 4, "duplex", warmup=2)

    made = three(mixed_net, MIXED, how, SGD(0.9), 4, range(6), clip=("stage", 0.5))
    again = three(partial(mixed_net, seed=5), MIXED, how, SGD(0.9), 4, range(6), clip=("stage", 0.5))
    for step, minibatch in enumerate(minibatches(MIXED, 4, STEPS)):
        for one in made if step < 9 else made + again:
            one.step(minibatch, loss, 0.05)
            assert not any(one.non_finite().values())
            with one.evaluation() as model:
                model(torch.ones(3, *MIXED).double())
        for one, other in zip(made, again, strict=True):
            if step == 3:  # another training, to be forgotten
                other.step(minibatch, loss, 0.05)
            if step == 8:
                other.load_state_dict(copy.deepcopy(one.state_dict()))
    assert all(same(made[0].state_dict(), other.state_dict()) for other in made[1:] + again)


def test_a_resnet_in_channels_last():
    made = []
    for beside in (False, True):
        torch.manual_seed(0)
        net = models.build("resnet20", width=4).to(memory_format=torch.channels_last).train()
        images = torch.randn(8, 3, 32, 32).to(memory_format=torch.channels_last)
        made.append(emulator(net, images, range(43), rule("t1+t2", 43, 4, "duplex"), SGD(0.9), 4, beside=beside))
    for _ in range(4):
        given = list(zip(images.split(2), torch.randint(0, 3, (8,)).split(2), [8] * 4, strict=True))
        assert torch.equal(*(one.step(given, loss, 0.1) for one in made))
    assert same(made[0].state_dict(), made[1].state_dict())


class Tied(nn.Module):
    """An embedding that is the output projection too, and one that is not."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Embedding(9, 6), nn.Embedding(9, 6)
        self.middle = nn.Linear(6, 6)

    def forward(self, words):
        return F.linear(torch.tanh(self.middle(self.first(words) + self.second(words))), self.first.weight)


def test_tied_embeddings():
    def words_loss(model, words):
        return F.cross_entropy(model(words).flatten(0, 1), words.flatten().roll(1), reduction="sum") / 24

    made = []
    for beside in (False, True):
        torch.manual_seed(0)
        net = Tied().double()
        words = torch.randint(0, 9, (4, 6))
        made.append(emulator(net, words, range(3), rule("t1+t2", 3, 2, "duplex"), SGD(0.9), 2, beside=beside))
    for _ in range(STEPS):
        given = torch.randint(0, 9, (4, 6))
        for one in made:
            one.step([given[:2], given[2:]], words_loss, 0.1)
    assert same(made[0].state_dict(), made[1].state_dict())


def copies_in_a_step(beside, label, monkeypatch):
    """Numbers copied or added into the live weights between the microbatches of a step, in multiples of all weights."""
    moved = []
    one = emulator(dense_net(), torch.zeros(2, 5).double(), range(4), rule(label, 4, 8, "duplex"), SGD(0.9), 8,
                   beside=beside)  # fmt: skip
    given = list(minibatches((5,), 8, 5, empty=False))
    for minibatch in given[:-1]:
        one.step(minibatch, loss, 0.01)
    load = one.weights.load

    def counting(reads, copy=None):
        before = list(one.weights._loaded)
        load(reads, copy)
        moved.extend(flat.numel() for flat, a, b in zip(one.history.live, before, reads, strict=True) if a != b)

    monkeypatch.setattr(one.weights, "load", counting)
    one.step(given[-1], loss, 0.01)
    return sum(moved) / sum(flat.numel() for flat in one.history.live)


@pytest.mark.parametrize("label", ["async", "t1+t2"])
def test_each_stage_is_loaded_twice_a_step_and_not_twice_a_microbatch(label, monkeypatch):
    """At the version before, and where the microbatches reach the current one, which the update needs too (the delays
    are 7/8, 5/8, 3/8 and 1/8)."""
    assert copies_in_a_step(True, label, monkeypatch) == 2
    assert copies_in_a_step(False, label, monkeypatch) > 8


def test_methods_whose_backward_reads_what_its_forward_read_go_without(monkeypatch):
    one = emulator(dense_net(), torch.zeros(2, 5).double(), range(4), rule("pipedream", 4, 2, "duplex"), SGD(0.9), 2,
                   beside=True)  # fmt: skip
    monkeypatch.setattr(one.way.backward_weights, "saving", lambda: pytest.fail("nothing to look at"))
    for minibatch in minibatches((5,), 2, 5):
        one.step(minibatch, loss, 0.01)


def test_where_it_is_used():
    def built(net, **options):
        return emulator(net, torch.zeros(1, 700).double(), [0], methods.build("pipemare"), SGD(0.0), 1, **options).way

    wide = 700 * 750 * 8
    assert wide >= WORTHWHILE > 700 * 740 * 8
    assert type(built(nn.Linear(700, 750, bias=False).double())) is Beside
    assert type(built(nn.Linear(700, 740, bias=False).double())) is Copying
    assert type(built(nn.Linear(700, 750, bias=False).double(), beside=False)) is Copying
    assert type(built(nn.Linear(700, 750, bias=False).double(), split=2)) is Copying


def test_a_staged_copy_is_written_where_it_differs_and_the_weights_in_one_copy(monkeypatch):
    """In steady state each stage is written once a step into the forwards' copy and once into the backwards'."""
    one = emulator(dense_net(), torch.zeros(2, 5).double(), range(4), rule("t1+t2", 4, 8, "duplex"), SGD(0.9), 8)
    given = list(minibatches((5,), 8, 5, empty=False))
    for minibatch in given[:-1]:
        one.step(minibatch, loss, 0.01)
    written = []
    staged = one.weights.staged
    write = staged._write
    monkeypatch.setattr(staged, "_write", lambda stages, *rest: (written.extend(stages), write(stages, *rest)))
    one.step(given[-1], loss, 0.01)
    assert sorted(written) == sorted([*range(4), *range(4)])


def test_the_version_that_made_room_is_not_kept():
    live = [torch.arange(3.0)]
    history = DeviceHistory(live, [2])
    for _ in range(3):
        live[0] += 1
        history.push()
    assert history.version(0, 1)[0] == 1
    history.spare(0).fill_(9.0)
    with pytest.raises(LookupError, match="keeps 2 versions; version 1 is not kept"):
        history.version(0, 1)
    assert history.version(0, 2)[0] == 2
    with pytest.raises(RuntimeError, match="middle of a step"):
        history.state_dict()
    history.push()
    assert history.version(0, 2)[0] == 2 and history.state_dict()["current"] == 4
    with pytest.raises(LookupError, match="no past version"):
        DeviceHistory(live, [None]).spare(0)


def test_weights_saved_in_another_type_are_refused():
    net = dense_net()
    one = emulator(net, torch.zeros(2, 5).double(), range(4), rule("async", 4, 1, "duplex"), SGD(0.0), 1, beside=True)

    def viewed(model, microbatch):
        pairs = torch.view_as_complex(model[0].weight.view(-1)[:34].view(17, 2))
        return (pairs * pairs).real.sum() + loss(model, microbatch)

    given = next(minibatches((5,), 1, 1, empty=False))
    one.step(given, loss, 0.0)
    with pytest.raises(RuntimeError, match="saved as torch.complex128"):
        one.step(given, viewed, 0.0)
