"""From a trained Transformer to sentences and their BLEU: beam search, the way back to text, both scores."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pipemare_exp.data import bpe
from pipemare_exp.data.cache import atomic_write
from pipemare_exp.data.tokenisers import Tokeniser
from pipemare_exp.models import fairseq_door as door

MAX_RATIO, MAX_EXTRA = 1.5, 10
"""A hypothesis has at most 1.5 times its source's subwords, and 10 more: an untrained model rarely ends by itself."""

TOKENS_IN_FLIGHT = 4096
"""Source tokens times beam in one batch of the search."""


class Scores(NamedTuple):
    """Both BLEU scores in percent. They are of different things and never interchangeable.

    `tokenised_bleu`: on lower-cased Moses words, BPE undone, what the published IWSLT14 numbers are (sacrebleu with
    tokenize=none). `sacrebleu`: on detokenised text, lower-cased, with sacrebleu's own 13a tokeniser; `signature` is
    its signature.
    """

    tokenised_bleu: float
    sacrebleu: float
    signature: str


def search(
    model: nn.Module,
    sources: Sequence[Tensor],
    dictionary: door.Dictionary,
    target: door.Dictionary,
    beam: int,
    length_penalty: float = 1.0,
) -> list[str]:
    """The best hypothesis for each source as words, BPE undone.

    `sources` are 1-D integer tensors that end in end-of-sentence. `model` is in eval mode and stays as it is.
    A source longer than the model's positions loses what is too much at its end.
    """
    encoder: Any = model.encoder
    limit, device, eos = encoder.max_positions(), encoder.embed_tokens.weight.device, dictionary.eos()
    cut = [s if len(s) <= limit else torch.cat([s[: limit - 1], s.new_tensor([eos])]) for s in sources]
    generator = door.generator([model], target, beam, length_penalty, MAX_RATIO, MAX_EXTRA)
    found = [""] * len(cut)
    try:
        with torch.no_grad():
            for group in _groups([len(s) for s in cut], max(TOKENS_IN_FLIGHT // beam, 1)):
                batch = door.pad_left([cut[k] for k in group], dictionary.pad()).to(device)
                lengths = torch.tensor([len(cut[k]) for k in group], device=device)
                net_input = {"src_tokens": batch, "src_lengths": lengths}
                best = generator.generate([model], {"net_input": net_input})
                for k, hypotheses in zip(group, best, strict=True):
                    found[k] = bpe.undo(target.string(hypotheses[0]["tokens"].cpu()))
    finally:
        door.forget_beam(model)
    return found


def _groups(lengths: list[int], max_tokens: int) -> list[list[int]]:
    """Indices by length, cut where (longest of the group) x (sentences) would exceed `max_tokens`."""
    groups: list[list[int]] = []
    for k in sorted(range(len(lengths)), key=lambda k: (lengths[k], k)):
        if not groups or lengths[k] * (len(groups[-1]) + 1) > max_tokens:
            groups.append([])
        groups[-1].append(k)
    return groups


def tokenised_bleu(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """Corpus BLEU of lower-cased words, in percent, without any tokeniser of sacrebleu's own."""
    from sacrebleu.metrics import BLEU

    metric: Any = BLEU(lowercase=True, tokenize="none", force=True)
    return float(metric.corpus_score(list(hypotheses), [list(references)]).score)


def score(
    hypotheses: Sequence[str], references: Sequence[str], tokeniser: Tokeniser, raw: Sequence[str] | None = None
) -> Scores:
    """Both scores of `hypotheses` (words). `raw`: untokenised references; without them the words are put together."""
    from sacrebleu.metrics import BLEU

    metric: Any = BLEU(lowercase=True)
    texts = [tokeniser.text(line) for line in hypotheses]
    raw = raw if raw is not None else [tokeniser.text(line) for line in references]
    detokenised = metric.corpus_score(texts, [list(raw)])
    return Scores(tokenised_bleu(hypotheses, references), float(detokenised.score), str(metric.get_signature()))


def write(
    path: Path, words: Sequence[str], references: Sequence[str], tokeniser: Tokeniser, raw: Sequence[str] | None
) -> None:
    """Hypotheses and references as text files, one sentence a line, from which sacrebleu gives the same scores.

    `path` and `<path>.ref` are detokenised, `<path>.tok` and `<path>.ref.tok` tokenised.
    """
    raw = raw if raw is not None else [tokeniser.text(line) for line in references]
    files = {"": [tokeniser.text(line) for line in words], ".ref": raw, ".tok": words, ".ref.tok": references}
    for suffix, lines in files.items():
        with atomic_write(path.with_name(path.name + suffix), "w") as file:
            file.writelines(line + "\n" for line in lines)
