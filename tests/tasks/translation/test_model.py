"""The Transformer's weight units in forward order, and its pieces."""

import pytest
import torch

from pipemare_exp import models
from pipemare_exp.errors import UserError
from pipemare_exp.models import fairseq_door as door
from pipemare_exp.models import transformer
from pipemare_exp.pipeline.model.dropout import KeyedDropout
from pipemare_exp.pipeline.model.units import pieces, weight_units

# fairseq's decoder gives torch its causal mask as numbers and its padding mask as booleans.
pytestmark = pytest.mark.filterwarnings("ignore:Support for mismatched key_padding_mask and attn_mask")

TINY = {"width": 8, "heads": 2, "words": (20, 24)}


def dictionary(size):
    made = door.Dictionary()
    while len(made) < size:
        made.add_symbol(f"w{len(made)}")
    return made


def build(tying="none", **options):
    source, target = dictionary(30), dictionary(30 if tying == "all" else 37)
    torch.manual_seed(5)
    sizes = {"layers": 2, "width": 16, "heads": 2, "dropout": 0.2, "attention_dropout": 0.1, "max_length": 64}
    return transformer.build(source, target, tying=tying, **sizes | options)


def example(padded, sentences=5):
    draw = torch.Generator().manual_seed(3)
    source = torch.randint(4, 30, (sentences, 7), generator=draw)
    target = torch.randint(4, 30, (sentences, 9), generator=draw)
    if padded:
        source[0, :3] = source[3, :1] = 1
        target[1, 6:] = target[2, 8:] = 1
    return source, source.ne(1).sum(1), target


@pytest.mark.parametrize(("tying", "units"), [("none", 93), ("decoder", 92), ("all", 91)])
def test_units_of_six_layers(tying, units):
    assert len(transformer.unit_sizes(layers=6, tying=tying, **TINY)) == units
    assert len(transformer.unit_sizes(layers=2, tying=tying, **TINY)) == units - 4 * (6 + 9)


def test_the_architecture_by_name_is_the_papers():
    sizes = models.unit_sizes("transformer_iwslt_de_en")
    assert len(sizes) == 93
    words, width, inner = transformer.IWSLT14_WORDS, 512, 1024
    attention = [3 * (width + 1) * width, (width + 1) * width, 2 * width]
    feedforward = [(width + 1) * inner, (inner + 1) * width, 2 * width]
    encoder, decoder = attention + feedforward, 2 * attention + feedforward
    assert sizes == [words[0] * width, *encoder * 6, words[1] * width, *decoder * 6, words[1] * width]


def test_units_are_in_forward_order():
    units = weight_units(build().eval(), transformer.run_once)
    names = [unit.name for unit in units]
    layer = ["self_attn.qkv", "self_attn.out_proj", "self_attn_layer_norm"]
    across = ["encoder_attn.qkv", "encoder_attn.out_proj", "encoder_attn_layer_norm"]
    inner = ["fc1", "fc2", "final_layer_norm"]
    expected = ["encoder.embed_tokens", *[f"encoder.layers.{k}.{n}" for k in (0, 1) for n in layer + inner]]
    expected += ["decoder.embed_tokens", *[f"decoder.layers.{k}.{n}" for k in (0, 1) for n in layer + across + inner]]
    assert names == [*expected, "decoder.output_projection"]
    assert set(units[1].parameters) == {
        f"encoder.layers.0.self_attn.{p}_proj.{kind}" for p in "qkv" for kind in ("weight", "bias")
    }


@pytest.mark.parametrize(("tying", "first"), [("decoder", "decoder.embed_tokens"), ("all", "encoder.embed_tokens")])
def test_a_tied_weight_is_one_unit_at_its_first_use(tying, first):
    model = build(tying).eval()
    units = weight_units(model, transformer.run_once)
    owner = [unit.name for unit in units if any("embed_tokens" in p or "output" in p for p in unit.parameters)]
    assert owner[-1] == first
    assert units[-1].name == "decoder.layers.1.final_layer_norm"
    assert sum(unit.numel for unit in units) == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("tying", transformer.TYINGS)
def test_pieces_compose_to_fairseqs_forward(tying, training, padded):
    model = build(tying).train(training)
    keyed = KeyedDropout(model, 7, torch.device("cpu"))
    inputs = example(padded)
    with keyed.at(3, 1):
        # TransformerModel's own forward, not our subclass's
        whole = door.TransformerModel.forward(model, *inputs)[0]
    with keyed.at(3, 1):
        state = inputs
        for piece in pieces(model):
            given = [tensor.clone() for tensor in state]
            after = piece.run(state)
            assert all(torch.equal(a, b) for a, b in zip(given, state, strict=True)), f"{piece.name} changed its input"
            state = after
    assert len(state) == 1 and torch.equal(state[0], whole)
    with keyed.at(3, 1):
        assert torch.equal(model(*inputs), whole)
    if training:
        with keyed.at(4, 1):
            assert not torch.equal(model(*inputs), whole), "dropout was off: the comparison would show little"


def test_gradients_through_pieces_are_the_whole_models():
    model = build("decoder")
    inputs, keyed = example(True), KeyedDropout(model, 7, torch.device("cpu"))
    with keyed.at(0, 0):
        model(*inputs).square().mean().backward()
    whole = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    with keyed.at(0, 0):
        state = inputs
        for piece in pieces(model):
            state = piece.run(state)
        state[0].square().mean().backward()
    assert all(torch.equal(whole[name], p.grad) for name, p in model.named_parameters())


def test_pieces_own_every_weight_once():
    model = build()
    owned = [id(p) for piece in pieces(model) for module in piece.modules for p in module.parameters()]
    assert sorted(owned) == sorted(id(p) for p in model.parameters())
    assert len(pieces(model)) == 1 + 2 + 1 + 2 + 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tying": "every"}, ("every", "none, decoder, all")),
        ({"heads": 3}, ("model.heads=3", "multiple")),
        ({"layers": 0}, ("model.layers=0", "at least 1")),
    ],
)
def test_sizes_that_do_not_fit_are_named(options, words):
    with pytest.raises(UserError) as error:
        build(**options)
    assert all(word in str(error.value) for word in words)


def test_sharing_all_embeddings_needs_one_dictionary():
    with pytest.raises(UserError, match="joint dictionary"):
        transformer.build(dictionary(20), dictionary(21), layers=1, width=8, heads=2, tying="all")
