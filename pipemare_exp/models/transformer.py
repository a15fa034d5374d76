"""fairseq's Transformer as weight units in forward order and as pieces at which it may be cut.

With 6+6 layers it has 6 x 6 + 6 x 9 = 90 units in its layers (an encoder layer: the q, k and v projections of one
attention together, its output projection, a layer norm, two linear layers, a layer norm; a decoder layer: the
attention's three units twice), and with two embeddings and the output projection 93 when nothing is tied, 92 when the
decoder's input and output share their weights (the published IWSLT14 recipe), 91 when all embeddings do.

Vaswani et al. 2017, arXiv 1706.03762; the layers and their initial weights are fairseq's `transformer_iwslt_de_en`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from pipemare_exp.errors import UserError, suggest
from pipemare_exp.models import fairseq_door as door
from pipemare_exp.pipeline.model.dropout import register_dropout
from pipemare_exp.pipeline.model.units import Piece, State, register_units, weight_units

SENTENCES = ("transformer", "transformer_iwslt_de_en")
"""The names of this network, fairseq's among them; read by `models` without importing this file."""

TYINGS = ("none", "decoder", "all")
"""What shares its weights: nothing; decoder input and output; encoder input too (needs one joint dictionary)."""

IWSLT14_WORDS = (8848, 6632)
"""Entries of the German and English dictionaries of fairseq's published IWSLT14 preparation."""

for _type in door.registered_types():
    register_dropout(_type)
register_units(
    door.MultiheadAttention, lambda module: [("qkv", ["q_proj", "k_proj", "v_proj"]), ("out_proj", ["out_proj"])]
)


class Transformer(door.TransformerModel):
    """fairseq's Transformer whose forward returns the logits alone, shape (sentences, target length, words).

    Encoder and decoder are fairseq's own modules, so that its criterion and its beam search work on them.
    """

    def forward(self, src_tokens: Tensor, src_lengths: Tensor, prev_output_tokens: Tensor) -> Tensor:
        """Logits for every target position.

        `src_tokens` (sentences, source length) is padded on the left, `prev_output_tokens` (sentences, target length)
        is the target moved right by one; `src_lengths` is part of fairseq's interface and not used by it.
        """
        return super().forward(src_tokens, src_lengths, prev_output_tokens, return_all_hiddens=False)[0]

    def pieces(self) -> list[Piece]:
        """Embedding, layers, embedding, layers, output projection, composing to the whole forward bit for bit.

        States: (source, lengths, target) -> (x, source padding, target) through the encoder -> (encoded, source
        padding, y, target padding) through the decoder -> (logits,). x, encoded and y are (length, sentences, width).
        """
        encoder, decoder = self.encoder, self.decoder
        last = len(decoder.layers) - 1
        made = [Piece("encoder.embed", (encoder.embed_tokens,), self._embed_source)]
        for index, layer in enumerate(encoder.layers):
            made.append(Piece(f"encoder.layers.{index}", (layer,), _encoder_layer(layer)))
        made.append(Piece("decoder.embed", (decoder.embed_tokens,), self._embed_target))
        for index, layer in enumerate(decoder.layers):
            made.append(
                Piece(f"decoder.layers.{index}", (layer,), _decoder_layer(decoder, layer, with_attention=index == last))
            )
        made.append(Piece("decoder.output", (decoder.output_projection,), self._project))
        return made

    def _embed_source(self, state: State) -> State:
        source, _, target = state
        padding = source.eq(self.encoder.padding_idx)
        x, _ = self.encoder.forward_embedding(source)
        # The same expression as fairseq's, whose product with 1 - 0 is kept where nothing is padded.
        x = x * (1 - padding.unsqueeze(-1).type_as(x) * padding.any().type_as(x))
        return x.transpose(0, 1), padding, target

    def _embed_target(self, state: State) -> State:
        encoded, source_padding, target = state
        decoder = self.decoder
        y = decoder.embed_scale * decoder.embed_tokens(target)
        y = decoder.dropout_module(y + decoder.embed_positions(target))
        return encoded, source_padding, y.transpose(0, 1), target.eq(decoder.padding_idx)

    def _project(self, state: State) -> State:
        return (self.decoder.output_layer(state[2].transpose(0, 1)),)


def _encoder_layer(layer: nn.Module) -> Any:
    def run(state: State) -> State:
        x, padding, target = state
        return layer(x, encoder_padding_mask=padding if padding.any() else None), padding, target

    return run


def _decoder_layer(decoder: Any, layer: nn.Module, with_attention: bool) -> Any:
    """`with_attention`: fairseq asks its last layer for attention weights, which takes another path of the kernel."""

    def run(state: State) -> State:
        encoded, source_padding, y, padding = state
        y, _, _ = layer(
            y,
            encoded,
            source_padding,
            None,
            self_attn_mask=decoder.buffered_future_mask(y),
            self_attn_padding_mask=padding if padding.any() else None,
            need_attn=with_attention,
            need_head_weights=with_attention,
        )
        return encoded, source_padding, y, padding

    return run


def build(
    source: door.Dictionary,
    target: door.Dictionary,
    *,
    layers: int = 6,
    width: int = 512,
    feedforward: int | None = None,
    heads: int = 4,
    dropout: float = 0.3,
    attention_dropout: float = 0.0,
    activation_dropout: float = 0.0,
    tying: str = "none",
    max_length: int = 1024,
) -> Transformer:
    """A Transformer with `layers` encoder and as many decoder layers, initialised from the default generator.

    `feedforward` defaults to twice the width (1,024 for the published 512). `tying` is "none", "decoder" or "all";
    the last needs `source` and `target` to be the same dictionary. Sentences have at most `max_length` tokens.
    Raises UserError for sizes that do not fit together.
    """
    if tying not in TYINGS:
        raise UserError(f'model.tying="{tying}"; allowed: {", ".join(TYINGS)}{suggest(tying, TYINGS)}')
    if min(layers, width, heads) < 1 or width % heads or width % 2:
        raise UserError(
            f"model.layers={layers}, model.width={width}, model.heads={heads}: all must be at least 1, the width even "
            "and a multiple of the heads"
        )
    if tying == "all" and source != target:
        raise UserError('model.tying="all" shares one embedding: source and target need one joint dictionary')
    inner = feedforward or 2 * width
    sides: dict[str, Any] = {}
    for side in ("encoder", "decoder"):
        sides |= {f"{side}_layers": layers, f"{side}_embed_dim": width, f"{side}_attention_heads": heads}
        sides[f"{side}_ffn_embed_dim"] = inner
    args = door.architecture(
        **sides,
        dropout=dropout,
        attention_dropout=attention_dropout,
        activation_dropout=activation_dropout,
        share_decoder_input_output_embed=tying != "none",
        share_all_embeddings=tying == "all",
        max_source_positions=max_length,
        max_target_positions=max_length,
    )
    model: Transformer = Transformer.build_model(args, door.languages(source, target))
    return model


def run_once(model: Any) -> None:
    """One forward of one short sentence: enough for every module to be called. Draws no random number in eval mode."""
    device = model.encoder.embed_tokens.weight.device
    eos = model.encoder.dictionary.eos()
    tokens = torch.tensor([[eos + 1, eos]], device=device)
    model(tokens, torch.tensor([2], device=device), tokens.flip(1))


def unit_sizes(words: tuple[int, int] = IWSLT14_WORDS, **options: Any) -> list[int]:
    """The number of weights of each unit of `build(...)`, in forward order, for dictionaries of these sizes."""
    joint = options.get("tying", "none") == "all"
    source = placeholder_dictionary(max(words) if joint else words[0])
    target = source if joint else placeholder_dictionary(words[1])
    with torch.random.fork_rng(devices=[]):
        model = build(source, target, **options)
    model.eval()
    with torch.no_grad():
        return [unit.numel for unit in weight_units(model, run_once)]


def placeholder_dictionary(size: int) -> door.Dictionary:
    """A dictionary of `size` entries that stand for no words, where only sizes matter."""
    made = door.Dictionary()
    while len(made) < size:
        made.add_symbol(f"word{len(made)}")
    return made
