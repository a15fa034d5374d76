"""Images as minibatches: order, cutting into microbatches, augmentation, loss, metric, held-out data."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from pipemare_exp import seeding, tasks
from pipemare_exp.data import cifar10, digits
from pipemare_exp.data.images import ImageArrays
from pipemare_exp.errors import UserError
from pipemare_exp.tasks.base import Task
from pipemare_exp.tasks.image_classification import (
    Augmentation,
    ImageClassification,
    augment,
    channel_statistics,
)


def synthetic(train: int = 50, test: int = 23) -> ImageArrays:
    """SYNTHETIC 32x32 colour images. The first two pixels hold the image's own number, to know it again."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (train + test, 32, 32, 3), dtype=np.uint8)
    labels = rng.integers(0, 10, train + test)
    labels[0] = 9  # so that there are ten classes in train
    images[:, 0, 0, 0] = np.arange(train + test)
    return ImageArrays(images[:train], labels[:train], images[train:], labels[train:])


def make(arrays: ImageArrays | None = None, **options) -> ImageClassification:
    settings = {"seed": 5, "batch_size": 16, "microbatches": 4, "model": "resnet20", "width": 4} | options
    return ImageClassification("cifar10", arrays or synthetic(), **settings)


def whole(minibatch) -> tuple[torch.Tensor, torch.Tensor]:
    parts = [part for part in minibatch if part is not None]
    return torch.cat([part.inputs for part in parts]), torch.cat([part.targets for part in parts])


def numbers(task: ImageClassification, minibatch) -> list[int]:
    """Which images a minibatch without augmentation holds."""
    inputs, _ = whole(minibatch)
    return (inputs[:, 0, 0, 0] * task._std[0] + task._mean[0]).round().int().tolist()


def config(name: str, root=None, model="digits_resnet", **data) -> SimpleNamespace:
    settings = {"root": root, "validation": 0, "batch_size": 64, "augment": False} | data
    return SimpleNamespace(
        task=SimpleNamespace(name=name),
        seed=0,
        data=SimpleNamespace(**settings),
        model=SimpleNamespace(name=model, width=None),
        pipeline=SimpleNamespace(microbatches=8),
    )


def test_it_is_a_task():
    assert isinstance(make(), Task)


def test_an_epoch_holds_every_image_once_in_an_order_of_its_own():
    task = make()
    orders = [[n for batch in task.minibatches(epoch) for n in numbers(task, batch)] for epoch in (0, 1)]
    assert [sorted(order) for order in orders] == [list(range(50))] * 2
    assert orders[0] != orders[1]
    other = make(seed=6)
    assert [n for batch in other.minibatches(0) for n in numbers(other, batch)] != orders[0]


def test_labels_belong_to_their_images():
    arrays = synthetic()
    task = make(arrays)
    for batch in task.minibatches(0):
        assert whole(batch)[1].tolist() == arrays.y_train[numbers(task, batch)].tolist()


@pytest.mark.parametrize(
    ("batch_size", "microbatches", "sizes"),
    [
        (16, 4, [[4, 4, 4, 4]] * 3 + [[1, 1]]),
        (15, 4, [[4, 4, 4, 3]] * 3 + [[2, 1, 1, 1]]),
        (48, 3, [[16, 16, 16], [1, 1]]),
        (5, 1, [[5]] * 10),
    ],
)
def test_microbatch_sizes(batch_size, microbatches, sizes):
    task = make(batch_size=batch_size, microbatches=microbatches)
    batches = list(task.minibatches(0))
    assert len(batches) == task.steps_per_epoch == len(sizes)
    for batch, expected in zip(batches, sizes, strict=True):
        assert len(batch) == microbatches
        assert [len(part.targets) for part in batch if part is not None] == expected
        assert all(part is None for part in batch[len(expected) :])
        assert all(part.count == sum(expected) for part in batch if part is not None)
        assert all(len(part.inputs) == len(part.targets) for part in batch if part is not None)


@pytest.mark.parametrize("start", [1, 3])
def test_starting_later_gives_the_same_minibatches(start):
    full = list(make(augmentation=Augmentation(4, flip=True)).minibatches(2))
    late = list(make(augmentation=Augmentation(4, flip=True)).minibatches(2, start=start))
    assert len(late) == len(full) - start
    for a, b in zip(full[start:], late, strict=True):
        assert torch.equal(whole(a)[0], whole(b)[0]) and torch.equal(whole(a)[1], whole(b)[1])
    assert list(make().minibatches(2, start=4)) == []


def test_augmentation_does_not_depend_on_the_number_of_microbatches():
    one, many = (make(microbatches=n, augmentation=Augmentation(4, flip=True)) for n in (1, 7))
    for a, b in zip(one.minibatches(0), many.minibatches(0), strict=True):
        assert torch.equal(whole(a)[0], whole(b)[0])


def test_nothing_draws_from_the_global_generator():
    before = torch.get_rng_state()
    task = make(augmentation=Augmentation(4, flip=True))
    model = task.build_model()
    task.probe(model)
    list(task.minibatches(0))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("augmentation", [Augmentation(4, flip=True), Augmentation(1, flip=False)])
def test_augmentation_against_one_image_at_a_time(augmentation):
    """The reference pads, crops and flips each image by itself with NumPy, from the documented draws."""
    images = torch.from_numpy(synthetic().x_train)
    result = augment(images, augmentation, seeding.generator("cpu", "test"))

    generator, padding = seeding.generator("cpu", "test"), augmentation.padding
    tops, lefts = torch.randint(0, 2 * padding + 1, (2, len(images)), generator=generator).tolist()
    flips = torch.randint(0, 2, (len(images), 1), generator=generator).flatten().tolist()
    for k, image in enumerate(images.numpy()):
        padded = np.zeros((32 + 2 * padding, 32 + 2 * padding, 3), np.uint8)
        padded[padding : padding + 32, padding : padding + 32] = image
        expected = padded[tops[k] : tops[k] + 32, lefts[k] : lefts[k] + 32]
        if augmentation.flip and flips[k]:
            expected = expected[:, ::-1]
        assert np.array_equal(result[k].numpy(), expected), k
    assert set(tops) == set(lefts) == set(range(2 * padding + 1))  # every offset occurs among 50 images


def test_every_minibatch_has_draws_of_its_own():
    """With one and the same image everywhere, only the draws can tell two minibatches apart."""
    arrays = synthetic()
    alike = ImageArrays(
        np.broadcast_to(arrays.x_train[:1], arrays.x_train.shape).copy(),
        arrays.y_train,
        arrays.x_test,
        arrays.y_test,
    )
    batches = [
        whole(batch)[0]
        for seed, epoch in ((5, 0), (5, 1), (6, 0))
        for batch in list(make(alike, seed=seed, augmentation=Augmentation(4, flip=True)).minibatches(epoch))[:3]
    ]
    assert not any(torch.equal(a, b) for k, a in enumerate(batches) for b in batches[:k])


def test_inputs_are_normalised_by_the_training_images():
    arrays = synthetic()
    task = make(arrays, batch_size=50)
    inputs, _ = whole(next(task.minibatches(0)))
    assert inputs.dtype == torch.float32
    assert inputs.mean((0, 2, 3)).abs().max() < 1e-5
    assert (inputs.std((0, 2, 3), correction=0) - 1).abs().max() < 1e-5
    mean, std = channel_statistics(arrays.x_train)
    assert mean == pytest.approx(arrays.x_train.mean((0, 1, 2))) and std == pytest.approx(arrays.x_train.std((0, 1, 2)))


def test_losses_of_the_microbatches_add_up_to_the_minibatch_mean():
    task = make(batch_size=15)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3072, 10))
    batch = list(task.minibatches(0))[-1]
    inputs, targets = whole(batch)
    summed = sum(task.loss(model, part) for part in batch if part is not None)
    assert torch.allclose(summed, nn.functional.cross_entropy(model(inputs), targets))


def test_evaluation_counts_by_hand(monkeypatch):
    monkeypatch.setattr("pipemare_exp.tasks.image_classification.EVALUATION_BATCH", 10)  # 23 images: 10 + 10 + 3
    task = make()
    model = nn.Sequential(nn.Flatten(), nn.Linear(3072, 10)).eval()
    images = (torch.from_numpy(synthetic().x_test).float() - task._mean) / task._std
    logits = model(images.permute(0, 3, 1, 2)).detach()
    labels = torch.from_numpy(synthetic().y_test)
    right = sum(int(row.argmax()) == int(label) for row, label in zip(logits, labels, strict=True))
    scores = task.evaluate(model)
    assert scores["accuracy"] == pytest.approx(100 * right / 23)
    assert scores["loss"] == pytest.approx(nn.functional.cross_entropy(logits, labels).item(), rel=1e-5)
    assert task.eval_split == "test" and task.test(model) == {"accuracy": scores["accuracy"]}


def test_validation_never_touches_test():
    arrays = synthetic()
    poisoned = ImageArrays(arrays.x_train, arrays.y_train, np.zeros((0, 1, 1, 3), np.uint8), np.zeros(0, np.int64))
    task = make(poisoned, validation=12)
    trained = {n for batch in task.minibatches(0) for n in numbers(task, batch)}
    held_out = set(task.held_out.images[:, 0, 0, 0].tolist())
    assert len(held_out) == 12 and trained | held_out == set(range(50)) and not trained & held_out
    assert task.eval_split == "valid" and task.test(task.build_model()) is None
    assert set(task.evaluate(task.build_model().eval())) == {"loss", "accuracy"}


def test_the_model_is_seeded_and_in_its_memory_format():
    same, again, other = make().build_model(), make().build_model(), make(seed=6).build_model()
    assert all(torch.equal(a, b) for a, b in zip(same.parameters(), again.parameters(), strict=True))
    assert not torch.equal(same.conv1.weight, other.conv1.weight)
    task = make(channels_last=True, augmentation=Augmentation(4, flip=True))
    model = task.build_model()
    assert model.layer1[0].conv1.weight.is_contiguous(memory_format=torch.channels_last)
    for part in next(task.minibatches(0)):
        assert part.inputs.is_contiguous(memory_format=torch.channels_last)
        assert not part.inputs.is_contiguous()


@pytest.mark.parametrize("name", ["digits", "cifar10"])
@pytest.mark.parametrize("channels_last", [False, True])
def test_activations_keep_the_memory_format(name, channels_last):
    """One-channel images are contiguous both ways; a convolution goes by their strides."""
    arrays, model = (digits.load(), "digits_resnet") if name == "digits" else (synthetic(), "resnet20")
    task = make(arrays, model=model, channels_last=channels_last)
    network = task.build_model()
    activations = network.conv1(next(task.minibatches(0))[0].inputs)
    assert activations.is_contiguous(memory_format=torch.channels_last) == channels_last


def test_the_memory_format_does_not_change_the_images():
    plain, last = (make(channels_last=flag, augmentation=Augmentation(4, flip=True)) for flag in (False, True))
    for a, b in zip(plain.minibatches(1), last.minibatches(1), strict=True):
        assert torch.equal(whole(a)[0], whole(b)[0])


def test_probe_leaves_no_trace():
    task = make()
    model = task.build_model().train()
    model.layer1[0].bn1.eval()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    task.probe(model)
    assert model.training and not model.layer1[0].bn1.training and model.layer1[0].bn2.training
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


def test_digits_by_configuration():
    task = tasks.build(config("digits"))
    assert task.steps_per_epoch == 22 and task.augmentation is None and task.classes == 10
    task.probe(task.build_model())
    assert tasks.build(config("digits", augment=True)).augmentation == Augmentation(1, flip=False)
    held_out = tasks.build(config("digits", validation=200))
    assert (len(held_out.train.labels), len(held_out.held_out.labels)) == (1200, 200)
    assert len(tasks.build(config("digits")).held_out.labels) == digits.TEST


def test_cifar10_by_configuration_says_that_it_is_a_subset(tmp_path):
    arrays = synthetic()
    np.savez(
        tmp_path / cifar10.FILE,
        x_train=arrays.x_train,
        y_train=arrays.y_train,
        x_test=arrays.x_test,
        y_test=arrays.y_test,
    )
    task = tasks.build(config("cifar10", str(tmp_path), "resnet20", batch_size=10, augment=True, validation=7))
    assert task.augmentation == Augmentation(4, flip=True)
    assert task.notes == {
        "train": "50 of 50,000 images",
        "test": "23 of 10,000 images",
        "validation": "7 images held out of train",
    }
    assert task.subset == 50


def test_the_real_cifar10(data_root):
    if not (data_root / cifar10.FILE).is_file():
        pytest.skip(f"no {cifar10.FILE} in PIPEMARE_DATA")
    task = tasks.build(config("cifar10", str(data_root), "resnet20", batch_size=128, validation=5000))
    assert task.notes == {"validation": "5,000 images held out of train"}
    assert task.steps_per_epoch == 352  # 45,000 / 128, rounded up
    assert np.bincount(task.held_out.labels.numpy()).min() > 400  # every class is in the validation set
    inputs, targets = whole(next(task.minibatches(0)))
    assert inputs.shape == (128, 3, 32, 32) and inputs.mean().abs() < 0.2 and 0.8 < inputs.std() < 1.2
    assert task.build_model()(inputs[:8]).shape == (8, 10)


def test_wrong_settings_are_the_users_errors():
    with pytest.raises(UserError, match="data.batch_size=51.*1 to the 50 training images"):
        make(batch_size=51)
    with pytest.raises(UserError, match="data.batch_size=0"):
        make(batch_size=0)
    with pytest.raises(UserError, match="digits_resnet takes images of 8x8 .* allowed for cifar10: resnet20"):
        make(model="digits_resnet").build_model()
    with pytest.raises(UserError, match='did you mean "cifar10"'):
        tasks.build(config("cifar-10"))
