"""A loss that is a mean over the microbatch is warned of once; a share of the minibatch's is not."""

import warnings

import pytest
import torch
from torch.nn import functional as F

from tests.pipeline.reference import SGD
from tests.pipeline.toys import dense_net, emulator, rule

N = 4


def built(microbatches=N, **options):
    how = rule("async", 4, microbatches, "duplex")
    return emulator(dense_net(), torch.zeros(2, 5).double(), range(4), how, SGD(), microbatches, **options)


def classes(count=N):
    draw = torch.Generator().manual_seed(0)
    return [
        (torch.randn(6, 5, generator=draw, dtype=torch.float64), torch.randint(0, 3, (6,), generator=draw))
        for _ in range(count)
    ]


def numbers():
    return [
        (x, torch.randn(6, 3, generator=torch.Generator().manual_seed(n)).double())
        for n, (x, _) in enumerate(classes())
    ]


def mean_cross_entropy(model, microbatch):
    return F.cross_entropy(model(microbatch[0]), microbatch[1])


def mean_square(model, microbatch):
    return F.mse_loss(model(microbatch[0]), microbatch[1])


def words(model, microbatch):
    """Logits [sentences, words, classes], flattened in the loss as language models do."""
    x, labels = microbatch
    return F.cross_entropy(model(x).flatten(0, 1), labels.flatten())


@pytest.mark.parametrize(
    ("loss", "given"),
    [
        (mean_cross_entropy, classes()),
        (mean_square, numbers()),
        (words, [(x.view(2, 3, 5), labels.view(2, 3)) for x, labels in classes()]),
    ],
)
@pytest.mark.parametrize("options", [{}, {"beside": True}, {"graphs": "on"}], ids=str)
def test_a_mean_is_warned_of_once(loss, given, options):
    made = built(**options)
    with pytest.warns(UserWarning, match="share of the minibatch's loss") as told:
        made.step(given, loss, 0.01)
    assert len(told) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made.step(given, loss, 0.01)


def shares(model, microbatch):
    return F.cross_entropy(model(microbatch[0]), microbatch[1], reduction="sum") / (6 * N)


def mean_over_the_microbatches(model, microbatch):
    return F.cross_entropy(model(microbatch[0]), microbatch[1]) / N


def own(model, microbatch):
    return (model(microbatch[0]) ** 4).mean()


@pytest.mark.parametrize("loss", [shares, mean_over_the_microbatches, own])
def test_shares_and_unknown_losses_are_not(loss):
    made = built()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made.step(classes(), loss, 0.01)


def test_a_microbatch_that_is_its_whole_minibatch_may_be_a_mean():
    """The next minibatch, which has more of them, is looked at."""
    one, made = built(1), built()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        one.step(classes(1), mean_cross_entropy, 0.01)
        made.step([*classes(1), None, None, None], mean_cross_entropy, 0.01)
    with pytest.warns(UserWarning, match="share"):
        made.step(classes(), mean_cross_entropy, 0.01)


def test_labels_that_are_no_classes_and_odd_microbatches_are_left_alone():
    made = built()
    given = [(x, labels + 50, object()) for x, labels in classes()]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made.step(given, lambda model, microbatch: model(microbatch[0]).sum(), 0.0)
    assert made.version == 1
    made = built()
    made.step([(x, labels + 50) for x, labels in classes()], lambda model, one: model(one[0]).sum(), 0.0)
    assert made.version == 1


def test_looking_changes_nothing():
    """Two emulators, one of which has nothing to look at, keep the same bits."""
    looking, blind = built(), built()
    blind._mean_loss = None
    for _ in range(3):
        assert torch.equal(*(made.step(classes(), shares, 0.05) for made in (looking, blind)))
    assert all(map(torch.equal, looking.flat_weights(), blind.flat_weights()))
