"""Translation as a task: minibatches by tokens, their split into microbatches, the loss, BLEU."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pipemare_exp import data, models
from pipemare_exp.data.bitext import SOURCE, TARGET, Binarised
from pipemare_exp.data.tokenisers import Tokeniser
from pipemare_exp.errors import UserError
from pipemare_exp.models import fairseq_door as door
from pipemare_exp.models import transformer
from pipemare_exp.seeding import generator, key
from pipemare_exp.tasks import decoding

POSITIONS = 1024
"""Longest sentence, in subwords with end-of-sentence, that the model has positions for."""

TEST_BEAM = 5

Microbatch = dict[str, Any]


def balanced(sizes: Sequence[int], parts: int) -> list[list[int]]:
    """Indices of `sizes` in `parts` groups of nearly equal sums, ascending within a group; some may be empty.

    The largest first, each into the group that is lightest so far, ties to the first: deterministic.
    """
    groups: list[list[int]] = [[] for _ in range(parts)]
    loads = [0] * parts
    for index in sorted(range(len(sizes)), key=lambda k: (-sizes[k], k)):
        lightest = min(range(parts), key=lambda g: (loads[g], len(groups[g]), g))
        groups[lightest].append(index)
        loads[lightest] += sizes[index]
    return [sorted(group) for group in groups]


class Translation:
    """A Task (see tasks/base.py) over binarised pairs.

    Minibatches hold at most `max_tokens` tokens of the longer side, padding counted, of sentences of like length.
    They are cut once; each epoch takes them in another order. Pairs of which a side is longer than `max_length` or
    `max_tokens` subwords are left out of training. Validation BLEU is of `valid_sentences` sentences evenly spread
    over valid (None: all) with beam `beam`.
    """

    metric = "bleu"
    text = None
    eval_split = "valid"

    def __init__(
        self,
        name: str,
        data: Binarised,
        *,
        model: dict[str, Any] | None = None,
        seed: int = 0,
        microbatches: int = 8,
        max_tokens: int = 4096,
        max_length: int | None = None,
        label_smoothing: float = 0.1,
        beam: int = 1,
        length_penalty: float = 1.0,
        valid_sentences: int | None = None,
        score_test: bool = True,
        device: torch.device | str = "cpu",
    ) -> None:
        self.name, self.data, self.seed, self.microbatches = name, data, seed, microbatches
        self.model_options, self.device = dict(model or {}), torch.device(device)
        self.beam, self.length_penalty, self.score_test = beam, length_penalty, score_test
        self.tokenisers = {side: Tokeniser(data.manifest["tokeniser"], side) for side in (SOURCE, TARGET)}
        self.source, self.target = (
            door.Dictionary.load(str(data.folder / f"dict.{side}.txt")) for side in (SOURCE, TARGET)
        )
        self.criterion = door.criterion(self.target, label_smoothing)
        self.max_tokens = max_tokens
        self._splits: dict[str, door.LanguagePairDataset] = {}
        self._made: dict[int, list[Microbatch | None]] = {}
        limit = min(max_length or POSITIONS, POSITIONS, max_tokens)
        self.batches, dropped = self._batches("train", limit)
        if not self.batches:
            raise UserError(
                f"no pair of {name} fits: data.max_length={max_length}, data.max_tokens={max_tokens} leave nothing of "
                f"{data.train_pairs} pairs; raise them"
            )
        self.steps_per_epoch = len(self.batches)
        full = data.manifest["full_train"]
        self.subset = data.train_pairs if full and data.train_pairs < full else None
        self.notes = self._notes(dropped, limit)
        total = data.manifest["pairs"]["valid"]
        wanted = min(valid_sentences or total, total)
        self._valid_bleu = [k * total // wanted for k in range(wanted)]
        if wanted < total:
            self.notes["valid_bleu"] = f"{wanted:,} of {total:,} sentences"

    def _notes(self, dropped: int, limit: int) -> dict[str, str]:
        notes = {}
        if self.subset:
            notes["train"] = f"{self.subset:,}-pair subset"
        if dropped:
            notes["left_out"] = f"{dropped:,} training pairs of more than {limit} subwords"
        return notes

    def split(self, split: str) -> door.LanguagePairDataset:
        """The pairs of "train", "valid" or "test"."""
        if split not in self._splits:
            self._splits[split] = door.load_split(self.data.prefix(split), SOURCE, TARGET, self.source, self.target)
        return self._splits[split]

    def _batches(self, split: str, limit: int) -> tuple[list[Any], int]:
        """Index arrays of like length, and the number of pairs that were left out as longer than `limit`."""
        pairs = self.split(split)
        order = pairs.ordered_indices()  # by source length, then target length, then place
        sizes = pairs.num_tokens_vec(order)
        kept = sizes <= limit
        batches = door.batches_by_tokens(order[kept], sizes[kept], self.max_tokens) if kept.any() else []
        return batches, int((~kept).sum())

    def build_model(self) -> transformer.Transformer:
        """The Transformer with initial weights drawn by the seed, on the device."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(key(self.seed, "init"))
            model = transformer.build(self.source, self.target, **{"max_length": POSITIONS} | self.model_options)
        return model.to(self.device)

    def probe(self, model: nn.Module) -> None:
        """One forward in eval mode without gradients; the mode is put back."""
        training = model.training
        model.eval()
        try:
            with torch.no_grad():
                transformer.run_once(model)
        finally:
            model.train(training)

    def minibatches(self, epoch: int, start: int = 0) -> Iterator[list[Microbatch | None]]:
        """The epoch's minibatches in an order that depends on (seed, epoch) alone, from index `start` on."""
        order = torch.randperm(self.steps_per_epoch, generator=generator("cpu", self.seed, "order", epoch))
        for index in order[start:].tolist():
            if index not in self._made:  # cut and padded the same way in every epoch, so kept
                self._made[index] = self.split_minibatch(self.batches[index].tolist())
            yield list(self._made[index])

    def split_minibatch(self, indices: Sequence[int]) -> list[Microbatch | None]:
        """Training pairs as N microbatches balanced by target tokens; None where there are too few sentences."""
        pairs = self.split("train")
        sizes = [int(pairs.tgt_sizes[k]) for k in indices]
        total = sum(sizes)
        made: list[Microbatch | None] = []
        for group in balanced(sizes, self.microbatches):
            if not group:
                made.append(None)
                continue
            sample = pairs.collater([pairs[indices[k]] for k in group])
            made.append(door.to_device(sample, self.device) | {"minibatch_tokens": total})
        return made

    def inputs(self, microbatch: Microbatch) -> tuple[Tensor, Tensor, Tensor]:
        """What the model is called with: source, source lengths, target moved right by one."""
        given = microbatch["net_input"]
        return given["src_tokens"], given["src_lengths"], given["prev_output_tokens"]

    def output_loss(self, logits: Tensor, model: nn.Module, microbatch: Microbatch) -> Tensor:
        """Label-smoothed cross entropy summed over the microbatch / target tokens of the whole minibatch."""
        total, _ = self.criterion.compute_loss(model, (logits, None), microbatch)
        return total / microbatch["minibatch_tokens"]

    def loss(self, model: nn.Module, microbatch: Microbatch) -> Tensor:
        return self.output_loss(model(*self.inputs(microbatch)), model, microbatch)

    @cached_property
    def _valid(self) -> list[Microbatch]:
        pairs = self.split("valid")
        batches, _ = self._batches("valid", min(POSITIONS, self.max_tokens))
        return [door.to_device(pairs.collater([pairs[int(k)] for k in batch]), self.device) for batch in batches]

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Per target token loss of valid (label-smoothed, as in training) and tokenised BLEU in percent."""
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        for sample in self._valid:
            total += self.criterion.compute_loss(model, (model(*self.inputs(sample)), None), sample)[0]
        loss = float(total) / sum(sample["ntokens"] for sample in self._valid)
        if not math.isfinite(loss):  # the search would only find that every hypothesis is impossible
            return {"loss": loss, "bleu": 0.0}
        hypotheses = self.hypotheses(model, "valid", self.beam, self._valid_bleu)
        references = self.data.tokenised("valid", TARGET)
        return {"loss": loss, "bleu": decoding.tokenised_bleu(hypotheses, [references[k] for k in self._valid_bleu])}

    def hypotheses(self, model: nn.Module, split: str, beam: int, which: Sequence[int] | None = None) -> list[str]:
        """Translations of a split's sentences (those at `which`) as words."""
        pairs = self.split(split)
        sources = [pairs.src[k] for k in (range(len(pairs)) if which is None else which)]
        return decoding.search(model, sources, self.source, self.target, beam, self.length_penalty)

    def test(
        self,
        model: nn.Module,
        checkpoints: Sequence[Path] | None = None,
        beam: int = TEST_BEAM,
        output: Path | None = None,
    ) -> dict[str, Any] | None:
        """Both BLEU scores of the whole test split (see `decoding.Scores`), or None where tuning forbids to look.

        `checkpoints`: files of the model's state at several evaluations, whose mean is tested in its place. `output`:
        a file for the detokenised hypotheses, one a line; `<output>.ref` gets the references, and `<output>.tok` and
        `<output>.ref.tok` what the tokenised score compares.
        """
        if not self.score_test:
            return None
        if checkpoints:
            model = self.averaged(checkpoints)
        words = self.hypotheses(model, "test", beam)
        references, raw = self.data.tokenised("test", TARGET), self.data.raw_references()
        if output is not None:
            decoding.write(output, words, references, self.tokenisers[TARGET], raw)
        return decoding.score(words, references, self.tokenisers[TARGET], raw)._asdict()

    def averaged(self, checkpoints: Sequence[Path]) -> transformer.Transformer:
        """A model in eval mode whose weights are the mean of those in the files, each a model's state dict."""
        states = [torch.load(path, map_location=self.device, weights_only=True) for path in checkpoints]
        model = self.build_model().eval()
        parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
        mean = {
            name: torch.stack([s[name].double() for s in states]).mean(0).to(last.dtype) if name in parameters else last
            for name, last in states[-1].items()
        }
        model.load_state_dict(mean)
        return model

    def translate(self, model: nn.Module, lines: Sequence[str], beam: int = TEST_BEAM) -> list[str]:
        """Raw sentences to raw sentences: tokenised, cut by BPE, searched, put together. An empty line stays empty."""
        encode = self.data.encoder()
        if encode is None:
            raise UserError(f"{self.data.folder} has no BPE codes: it was made from finished BPE text without them")
        words = [self.tokenisers[SOURCE].words(line) for line in lines]
        filled = [k for k, line in enumerate(words) if line]
        sources = [self.source.encode_line(encode(words[k]), add_if_not_exist=False).long() for k in filled]
        found = [""] * len(lines)
        hypotheses = decoding.search(model, sources, self.source, self.target, beam, self.length_penalty)
        for k, hypothesis in zip(filled, hypotheses, strict=True):
            found[k] = self.tokenisers[TARGET].text(hypothesis)
        return found


def build(cfg: Any, device: torch.device, memory_format: str) -> Translation:
    """The translation task that `cfg` describes; its data is prepared or taken from the cache."""
    from pipemare_exp.data import bitext, cache

    described = data.describe(cfg.task.name)
    assert isinstance(described, bitext.Text)
    if models.find(cfg.model.name).takes != "sentences":
        allowed = " or ".join(models.taking("sentences"))
        raise UserError(f"model.name={cfg.model.name} with task {cfg.task.name}: translation trains {allowed}")
    root = cache.data_root(cfg.data.root)
    options = {
        name: value
        for name in ("layers", "width", "feedforward", "heads", "dropout", "attention_dropout", "activation_dropout",
                     "tying")
        if (value := getattr(cfg.model, name)) is not None
    }  # fmt: skip
    evaluation = cfg.evaluation
    return Translation(
        cfg.task.name,
        described.binarised(root, cfg),
        model=options,
        seed=cfg.seed,
        microbatches=cfg.pipeline.microbatches,
        max_tokens=cfg.data.max_tokens or 4096,
        max_length=cfg.data.max_length,
        label_smoothing=0.1 if cfg.task.label_smoothing is None else cfg.task.label_smoothing,
        beam=evaluation.beam or 1,
        length_penalty=1.0 if evaluation.length_penalty is None else evaluation.length_penalty,
        valid_sentences=evaluation.sentences,
        score_test=cfg.data.validation == 0,
        device=device,
    )
