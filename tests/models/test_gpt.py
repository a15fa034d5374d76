"""GPT: counts of weights and units, causality, GPT-2's initial weights, and pieces that are the model, bit for bit."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from pipemare_exp import models
from pipemare_exp.errors import UserError
from pipemare_exp.pipeline.model.dropout import KeyedDropout
from pipemare_exp.pipeline.model.recompute import piece_starts
from pipemare_exp.pipeline.model.units import pieces, weight_units

SMALL = {"vocabulary": 11, "positions": 9, "layers": 2, "width": 12, "heads": 3}
TYINGS = ["none", "decoder"]


def make(**options):
    torch.manual_seed(5)
    model = models.build("gpt_tiny", **SMALL | options)
    for name, p in model.named_parameters():  # as initialised, all norms are alike and a mix-up would not show
        if p.dim() == 1:
            nn.init.normal_(p, 1.0 if name.endswith("weight") else 0.0, 0.3)
        else:
            nn.init.normal_(p, std=0.3)
    return model, torch.randint(11, (3, 7))


def units_of(model):
    return weight_units(model.eval(), lambda m: m(torch.zeros(1, 1, dtype=torch.int64)))


def test_published_count_of_weights():
    """GPT-2's smallest has 124 M weights with its head tied: 124,439,808 in its published checkpoint."""
    assert sum(models.unit_sizes("gpt2")) == 124_439_808
    assert sum(models.unit_sizes("gpt2", tying="none")) == 124_439_808 + 50257 * 768
    assert 0.35e6 < sum(models.unit_sizes("gpt_tiny")) < 0.45e6


@pytest.mark.parametrize(
    ("name", "tying", "units"), [("gpt2", "decoder", 75), ("gpt2", "none", 76), ("gpt_tiny", "none", 22)]
)
def test_number_of_weight_units(name, tying, units):
    """Six a block, two embeddings, the last norm, and the head where it is not tied."""
    assert len(models.unit_sizes(name, tying=tying)) == units


def test_a_unit_for_each_matrix_norm_and_embedding_in_forward_order():
    model, _ = make(layers=1)
    assert [unit.name for unit in units_of(model)] == [
        "tokens", "positions", "blocks.0.norm1", "blocks.0.qkv", "blocks.0.out", "blocks.0.norm2", "blocks.0.up",
        "blocks.0.down", "norm", "head",
    ]  # fmt: skip
    tied, _ = make(layers=1, tying="decoder")
    assert tied.head.weight is tied.tokens.weight
    assert [unit.name for unit in units_of(tied)][0] == "tokens" and units_of(tied)[-1].name == "norm"


def by_hand(model, tokens):
    """Logits from the definition, position by position, with attention written out."""
    weights, size = dict(model.named_parameters()), model.size

    def norm(x, name):
        centred = x - x.mean(-1, keepdim=True)
        scale = (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        return centred / scale * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    def linear(x, name):
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    x = weights["tokens.weight"][tokens] + weights["positions.weight"][: tokens.shape[1]]
    for index in range(size.layers):
        name = f"blocks.{index}"
        q, k, v = linear(norm(x, f"{name}.norm1"), f"{name}.qkv").split(size.width, -1)
        mixed = torch.zeros_like(x)
        for head in range(size.heads):
            part = slice(head * size.width // size.heads, (head + 1) * size.width // size.heads)
            for now in range(tokens.shape[1]):
                scores = (q[:, now, None, part] * k[:, : now + 1, part]).sum(-1) / math.sqrt(size.width / size.heads)
                weight = torch.exp(scores) / torch.exp(scores).sum(-1, keepdim=True)
                mixed[:, now, part] = (weight[..., None] * v[:, : now + 1, part]).sum(1)
        x = x + linear(mixed, f"{name}.out")
        h = linear(norm(x, f"{name}.norm2"), f"{name}.up")
        h = 0.5 * h * (1 + torch.tanh(math.sqrt(2 / math.pi) * (h + 0.044715 * h**3)))
        x = x + linear(h, f"{name}.down")
    return norm(x, "norm") @ weights["tokens.weight" if size.tying == "decoder" else "head.weight"].T


@pytest.mark.parametrize("tying", TYINGS)
def test_logits_by_hand(tying):
    model, tokens = make(tying=tying)
    model.double()
    with torch.no_grad():
        torch.testing.assert_close(model(tokens), by_hand(model, tokens), rtol=1e-10, atol=1e-10)


def test_no_logit_depends_on_a_later_token():
    model, tokens = make()
    before, other = model(tokens), tokens.clone()
    other[:, 4] = (other[:, 4] + 1) % 11
    after = model(other)
    assert torch.equal(before[:, :4], after[:, :4])
    assert (before[:, 4:] != after[:, 4:]).any(-1).all()


def test_initial_weights():
    """Standard deviation 0.02, and 0.02 / sqrt(2 L) where a block adds to what passes by; the loss is a guess's."""
    torch.manual_seed(0)
    model = models.build("gpt_small")
    for name, p in model.named_parameters():
        if p.dim() == 1:
            assert (p == (0.0 if name.endswith("bias") else 1.0)).all(), name
        else:
            residual = name.endswith(("out.weight", "down.weight"))
            wanted = 0.02 / math.sqrt(2 * 6) if residual else 0.02
            assert p.std().item() == pytest.approx(wanted, rel=0.05), name
    tokens = torch.randint(256, (4, 65))
    with torch.no_grad():
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    assert loss.item() == pytest.approx(math.log(256), abs=0.1)


@pytest.mark.parametrize("tying", TYINGS)
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_pieces_compose_to_the_model_bit_for_bit(tying, training):
    whole, tokens = make(tying=tying, dropout=0.2, attention_dropout=0.3)
    whole.train(training)
    cut = copy.deepcopy(whole)
    keyed = [KeyedDropout(model, 3, torch.device("cpu")) for model in (whole, cut)]
    with keyed[0].at(1, 0):
        expected = whole(tokens)
    expected.square().sum().backward()
    state = (tokens,)
    with keyed[1].at(1, 0):
        for piece in pieces(cut):
            before = [t.detach().clone() for t in state]
            given, state = state, piece.run(state)
            assert all(torch.equal(a, b) for a, b in zip(given, before, strict=True)), f"{piece.name} changes its input"
    (output,) = state
    output.square().sum().backward()
    assert torch.equal(output, expected)
    for (key, p), q in zip(whole.named_parameters(), cut.parameters(), strict=True):
        assert torch.equal(p.grad, q.grad), key


@pytest.mark.parametrize("tying", TYINGS)
def test_a_piece_for_each_weight_unit(tying):
    model, _ = make(tying=tying)
    units = units_of(model)
    assert piece_starts(model, units, pieces(model)) == list(range(len(units)))


def test_wrong_options():
    with pytest.raises(UserError, match="width=10, model.heads=3"):
        models.build("gpt_tiny", width=10, heads=3)
    with pytest.raises(UserError, match='tying="all".*no encoder'):
        models.build("gpt_tiny", tying="all")
    with pytest.raises(UserError, match="no option depth"):
        models.build("gpt_tiny", depth=3)
    with pytest.raises(UserError, match='did you mean "gpt_tiny"'):
        models.build("gpt_tny")
