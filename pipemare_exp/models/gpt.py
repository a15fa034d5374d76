"""GPT: a decoder-only Transformer, its weight units in forward order, and where it may be cut.

Tokens are embedded, positions have learnt embeddings, and every block adds to its input first causal attention, then a
two-layer perceptron, each of a LayerNorm of what came before (pre-LayerNorm). A block has six weight units: norm, q/k/v
together, output projection, norm, and the perceptron's two matrices. With both embeddings, the last norm and the output
projection (the head) that makes 6 L + 4 units for L layers, one fewer where the head is tied to the token embedding.

Radford et al. 2019, "Language Models are Unsupervised Multitask Learners" (GPT-2), whose initial weights these are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from pipemare_exp.errors import UserError, suggest
from pipemare_exp.pipeline.model.dropout import register_dropout
from pipemare_exp.pipeline.model.units import Piece

TOKENS = ("gpt_tiny", "gpt_small", "gpt2")
"""The models of this file, which are read from here without importing it."""

TYINGS = ("none", "decoder")
"""What shares its weights: nothing; the decoder's input and output, as GPT-2 has it."""

DEVIATION = 0.02
"""Standard deviation of initial weights."""


@dataclass(frozen=True)
class Size:
    """What tells the models apart.

    `vocabulary`: tokens; `positions`: the longest sequence; `feedforward` None is four times the width. `dropout` is of
    the embeddings and of what a block adds, `attention_dropout` of the attention's weights.
    """

    vocabulary: int
    positions: int
    layers: int
    width: int
    heads: int
    feedforward: int | None = None
    dropout: float = 0.0
    attention_dropout: float = 0.0
    tying: str = "none"


SIZES = {
    "gpt_tiny": Size(256, positions=128, layers=3, width=96, heads=4),
    "gpt_small": Size(256, positions=256, layers=6, width=128, heads=4),
    "gpt2": Size(50257, 1024, layers=12, width=768, heads=12, dropout=0.1, attention_dropout=0.1, tying="decoder"),
}
"""Without tying: 0.40 M and 1.29 M weights, for bytes; GPT-2's smallest, 124 M with its head tied, for its own BPE."""


class CausalAttention(nn.Module):
    """Multi-head attention to the present and the past; it has no weights, the projections are modules of their own."""

    def __init__(self, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout

    def forward(self, projected: Tensor) -> Tensor:
        """Queries, keys and values side by side, (sequences, length, 3 width) -> (sequences, length, width)."""
        sequences, length, _ = projected.shape
        q, k, v = projected.view(sequences, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        y = functional.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        return y.transpose(1, 2).flatten(2)


register_dropout(CausalAttention)


class Block(nn.Module):
    """x + attention(norm(x)), then y + perceptron(norm(y)); shapes (sequences, length, width)."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        width, inner = size.width, size.feedforward or 4 * size.width
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.attention = CausalAttention(size.heads, size.attention_dropout)
        self.out = nn.Linear(width, width)
        self.dropout1 = nn.Dropout(size.dropout)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, inner)
        self.gelu = nn.GELU(approximate="tanh")
        self.down = nn.Linear(inner, width)
        self.dropout2 = nn.Dropout(size.dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self._mix(self.qkv(self.norm1(x)))
        return x + self._contract(self.up(self.norm2(x)))

    def _mix(self, projected: Tensor) -> Tensor:
        return self.dropout1(self.out(self.attention(projected)))

    def _contract(self, hidden: Tensor) -> Tensor:
        return self.dropout2(self.down(self.gelu(hidden)))

    def pieces(self, name: str) -> list[Piece]:
        """One piece per weight unit; between them the block's input travels along: (x,) -> (h, x) -> ... -> (y,)."""
        return [
            Piece(f"{name}.norm1", (self.norm1,), lambda state: (self.norm1(state[0]), state[0])),
            Piece(f"{name}.qkv", (self.qkv,), lambda state: (self.qkv(state[0]), state[1])),
            Piece(f"{name}.out", (self.out,), lambda state: (state[1] + self._mix(state[0]),)),
            Piece(f"{name}.norm2", (self.norm2,), lambda state: (self.norm2(state[0]), state[0])),
            Piece(f"{name}.up", (self.up,), lambda state: (self.up(state[0]), state[1])),
            Piece(f"{name}.down", (self.down,), lambda state: (state[1] + self._contract(state[0]),)),
        ]


class GPT(nn.Module):
    """Tokens (sequences, length), int64 -> logits of the next token (sequences, length, vocabulary)."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.size = size
        self.tokens = nn.Embedding(size.vocabulary, size.width)
        self.positions = nn.Embedding(size.positions, size.width)
        self.dropout = nn.Dropout(size.dropout)
        blocks = [Block(size) for _ in range(size.layers)]
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(size.width)
        self.head = nn.Linear(size.width, size.vocabulary, bias=False)
        if size.tying == "decoder":
            self.head.weight = self.tokens.weight
        self.apply(_initialise)
        for block in blocks:
            for last in (block.out, block.down):  # 2 L sums lie on the residual path: its variance stays that of one
                nn.init.normal_(last.weight, std=DEVIATION / (2 * size.layers) ** 0.5)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self._place(self.tokens(tokens))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))

    def _place(self, x: Tensor) -> Tensor:
        return self.dropout(x + self.positions(torch.arange(x.shape[1], device=x.device)))

    def pieces(self) -> list[Piece]:
        """One piece per weight unit, whose composition equals `forward` bit for bit; none writes into its input.

        A tied head is no unit of its own: it is in one piece with the norm before it.
        """
        made = [
            Piece("tokens", (self.tokens,), lambda state: (self.tokens(state[0]),)),
            Piece("positions", (self.positions,), lambda state: (self._place(state[0]),)),
        ]
        for index, block in enumerate(self.blocks):
            assert isinstance(block, Block)
            made += block.pieces(f"blocks.{index}")
        if self.size.tying == "decoder":
            return [*made, Piece("norm+head", (self.norm, self.head), lambda state: (self.head(self.norm(state[0])),))]
        return [
            *made,
            Piece("norm", (self.norm,), lambda state: (self.norm(state[0]),)),
            Piece("head", (self.head,), lambda state: (self.head(state[0]),)),
        ]


def _initialise(module: nn.Module) -> None:
    """GPT-2's initial weights: normal, biases 0; LayerNorm's stay 1 and 0."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=DEVIATION)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


def build(
    name: str,
    *,
    vocabulary: int | None = None,
    positions: int | None = None,
    layers: int | None = None,
    width: int | None = None,
    heads: int | None = None,
    feedforward: int | None = None,
    dropout: float | None = None,
    attention_dropout: float | None = None,
    tying: str | None = None,
) -> GPT:
    """The model `name`, one of SIZES, initialised from torch's default generator; None is the model's own value.

    Raises UserError for sizes that do not fit together.
    """
    options = {key: value for key, value in locals().items() if key != "name" and value is not None}
    size = replace(SIZES[name], **options)
    if size.tying not in TYINGS:
        raise UserError(
            f'model.tying="{size.tying}" with model.name={name}, which has no encoder; allowed: {", ".join(TYINGS)}'
            f"{suggest(size.tying, TYINGS)}"
        )
    if min(size.layers, size.width, size.heads, size.positions) < 1 or size.width % size.heads:
        raise UserError(
            f"model.layers={size.layers}, model.width={size.width}, model.heads={size.heads}, "
            f"model.positions={size.positions}: all must be at least 1, and the width a multiple of the heads"
        )
    return GPT(size)
