"""Text as minibatches: blocks, their order, the loss, bits per byte by hand, samples, and what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from pipemare_exp.data.vocabulary import Bytes, Subwords, learn
from pipemare_exp.errors import UserError
from pipemare_exp.tasks.base import Task
from pipemare_exp.tasks.language_modelling import LanguageModelling

WORDS = [b"the array ", b"has shape ", b"(n, m) and ", b"a dtype.\n", "grün ".encode()]
SMALL = {"layers": 1, "width": 8, "heads": 2, "positions": 16}


def text(count: int, seed: int) -> bytes:
    return b"".join(WORDS[k] for k in np.random.RandomState(seed).randint(len(WORDS), size=count))


TEXTS = {"train": text(200, 0), "valid": text(40, 1), "test": text(30, 2)}


def make(vocabulary=None, texts=TEXTS, **options) -> LanguageModelling:
    vocabulary = vocabulary or Bytes()
    tokens = {split: vocabulary.encode(found) for split, found in texts.items()}
    settings = {"seed": 3, "model": "gpt_tiny", "options": SMALL, "block": 8, "batch_size": 10, "microbatches": 3}
    return LanguageModelling("docstrings", vocabulary, tokens, **settings | options)


def whole(minibatch) -> tuple[torch.Tensor, torch.Tensor]:
    parts = [part for part in minibatch if part is not None]
    return torch.cat([part.inputs for part in parts]), torch.cat([part.targets for part in parts])


def test_it_is_a_task():
    task = make()
    assert isinstance(task, Task) and task.metric == "bits_per_byte" and task.eval_split == "valid"


def test_an_epoch_has_every_block_once_and_each_target_is_the_next_token():
    task, data = make(), TEXTS["train"]
    blocks = (len(data) - 1) // 8
    inputs, targets = (torch.cat(side) for side in zip(*map(whole, task.minibatches(0)), strict=True))
    assert len(inputs) == blocks and task.steps_per_epoch == math.ceil(blocks / 10)
    expected = sorted(data[8 * k : 8 * k + 9] for k in range(blocks))
    assert sorted(bytes([*x, y[-1]]) for x, y in zip(inputs.tolist(), targets.tolist(), strict=True)) == expected
    assert torch.equal(inputs[:, 1:], targets[:, :-1])


def test_starting_at_k_gives_what_running_from_0_gives_there():
    task = make(blocks_per_epoch=55)
    for epoch in (0, 1):
        run = [whole(minibatch) for minibatch in task.minibatches(epoch)]
        assert len(run) == task.steps_per_epoch == 6 and len(run[-1][0]) == 5
        for start in (1, 4):
            for minibatch, expected in zip(task.minibatches(epoch, start), run[start:], strict=True):
                assert all(torch.equal(a, b) for a, b in zip(whole(minibatch), expected, strict=True))
    firsts = [whole(next(iter(make(seed=seed).minibatches(epoch))))[0] for seed, epoch in ((3, 0), (3, 1), (4, 0))]
    assert not any(torch.equal(a, b) for a, b in zip(firsts, firsts[1:], strict=False))


def test_microbatches_do_not_change_what_a_minibatch_is_and_the_rest_is_empty():
    """Ten blocks in three microbatches; with twelve, two have none."""
    task, other = make(), make(microbatches=12)
    a, b = next(iter(task.minibatches(0))), next(iter(other.minibatches(0)))
    assert [len(part.inputs) for part in a] == [4, 3, 3] and b[-2:] == [None, None]
    assert torch.equal(whole(a)[0], whole(b)[0]) and {part.count for part in a} == {80}
    model = task.build_model().double()
    inputs, targets = whole(a)
    mean = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
    assert sum(task.loss(model, part).item() for part in a) == pytest.approx(mean.item(), rel=1e-12)


@pytest.mark.parametrize("merges", [None, 30])
def test_bits_per_byte_by_hand(merges):
    """Summed over single tokens, each predicted from what lies before it in its block."""
    vocabulary = Bytes() if merges is None else Subwords(learn(TEXTS["train"], merges))
    task = make(vocabulary)
    model = task.build_model().double().eval()
    tokens = vocabulary.encode(TEXTS["valid"]).tolist()
    bits, covered, count = 0.0, b"", 0
    with torch.no_grad():
        for start in range(0, (len(tokens) - 1) // 8 * 8, 8):
            for place in range(start + 1, start + 9):
                probability = model(torch.tensor([tokens[start:place]]))[0, -1].softmax(-1)[tokens[place]]
                bits -= math.log2(float(probability))
                covered += vocabulary.decode([tokens[place]])
                count += 1
    found = task.evaluate(model)
    assert found["bits_per_byte"] == pytest.approx(bits / len(covered), rel=1e-6)
    assert found["loss"] == pytest.approx(bits * math.log(2) / count, rel=1e-6)
    assert found["perplexity"] == pytest.approx(2 ** (bits / count), rel=1e-5)


def test_evaluation_on_some_blocks_evenly_spread_and_test_on_all():
    task = make(valid_blocks=4)
    total = (len(TEXTS["valid"]) - 1) // 8
    assert task._valid.tolist() == [0, total // 4, total * 2 // 4, total * 3 // 4]
    assert task.notes["valid"] == f"4 of {total} blocks"
    model = task.build_model().eval()
    tested = task.test(model)
    assert tested == make(texts=TEXTS | {"valid": TEXTS["test"]}).evaluate(model)
    assert make(score_test=False).test(model) is None and "test" not in make(score_test=False).tokens


def test_samples():
    task = make()
    model = task.build_model().eval()
    first = task.sample(model, b"the ", 20, seed=1)
    assert len(first) == 20 and first == task.sample(model, b"the ", 20, seed=1)
    assert first != task.sample(model, b"the ", 20, seed=2)
    likeliest = task.sample(model, b"the ", 3, temperature=0)
    assert likeliest == task.sample(model, b"the ", 3, top_k=1, seed=9)
    known = b"the "
    for _ in range(3):
        known += bytes([int(model(torch.tensor([list(known[-8:])]))[0, -1].argmax())])
    assert known == b"the " + likeliest


def test_what_is_refused():
    with pytest.raises(UserError, match=r"data.block=5000, but train of docstrings has \d+ tokens.*block=\d+ or less"):
        make(block=5000)
    with pytest.raises(UserError, match="valid of docstrings has 3 tokens"):
        make(texts=TEXTS | {"valid": b"abc"})
    with pytest.raises(UserError, match="data.block=17, but model.name=gpt_tiny has 16 positions.*model.positions=17"):
        make(block=17).build_model()
    with pytest.raises(UserError, match="blocks_per_epoch=100000.*an epoch takes at most those"):
        make(blocks_per_epoch=100_000)
