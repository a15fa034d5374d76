"""Language modelling as a task: blocks of a running text, the loss of each next token, bits per byte, samples."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from pipemare_exp import data, models, seeding
from pipemare_exp.data.vocabulary import Vocabulary
from pipemare_exp.errors import UserError

EVALUATION_TOKENS = 8192
"""Tokens in one forward of an evaluation."""


@dataclass(frozen=True)
class Microbatch:
    """Tokens (b, block), the token after each of them (b, block), and `count`, the targets of the whole minibatch."""

    inputs: Tensor
    targets: Tensor
    count: int


class LanguageModelling:
    """A `Task` (see `tasks.base`) over a text that is cut into blocks of `block` tokens, one after the other.

    In a block each token is predicted from those before it in the block and the one before the block, so every token of
    a split but its first and what does not fill a block is predicted once. An epoch takes `blocks_per_epoch` blocks
    (None: all) in an order, and out of all, by (seed, epoch); a minibatch has `batch_size` of them. `valid_blocks`: how
    many blocks of valid, evenly spread, an evaluation looks at (None: all).

    The metric is bits per byte: the sum of -log2 p over the tokens / the number of bytes that they stand for. It
    compares models of different tokens, as the loss per token and its perplexity do not.
    """

    metric = "bits_per_byte"
    eval_split = "valid"

    def __init__(
        self,
        name: str,
        vocabulary: Vocabulary,
        tokens: dict[str, np.ndarray],
        *,
        seed: int,
        model: str,
        block: int,
        batch_size: int,
        microbatches: int,
        options: dict[str, Any] | None = None,
        blocks_per_epoch: int | None = None,
        valid_blocks: int | None = None,
        score_test: bool = True,
        device: torch.device | str = "cpu",
    ) -> None:
        self.name, self.vocabulary, self.seed = name, vocabulary, seed
        self.block, self.batch_size, self.microbatches = block, batch_size, microbatches
        self.model_name, self.options = model, dict(options or {})
        self.score_test, self.device = score_test, torch.device(device)
        self.notes = {"tokens": vocabulary.name}
        self.subset: int | None = None
        self.text: str | None = None
        if not score_test:
            tokens = {split: found for split, found in tokens.items() if split != "test"}
        for split, found in tokens.items():
            if len(found) <= block:
                raise UserError(
                    f"data.block={block}, but {split} of {name} has {len(found)} tokens and a block needs one "
                    f"more than its length; take data.block={max(len(found) - 1, 1)} or less, or a longer text"
                )
        kinds = {split: found if found.dtype == np.uint8 else found.astype(np.int32) for split, found in tokens.items()}
        self.tokens = {split: torch.tensor(found, device=self.device) for split, found in kinds.items()}
        self._lengths = torch.tensor(vocabulary.lengths, device=self.device)
        total = self.blocks("train")
        self.blocks_per_epoch = blocks_per_epoch or total
        if self.blocks_per_epoch > total or batch_size > self.blocks_per_epoch:
            raise UserError(
                f"data.blocks_per_epoch={blocks_per_epoch}, data.batch_size={batch_size}: train of {name} has "
                f"{total:,} blocks of {block} tokens; an epoch takes at most those, and a minibatch at most the epoch's"
            )
        self.steps_per_epoch = -(-self.blocks_per_epoch // batch_size)
        if self.blocks_per_epoch < total:
            self.notes["epoch"] = f"{self.blocks_per_epoch:,} of {total:,} blocks of {block} tokens"
        there = self.blocks("valid")
        looked_at = min(valid_blocks or there, there)
        self._valid = torch.arange(looked_at, device=self.device) * there // looked_at
        if looked_at < there:
            self.notes["valid"] = f"{looked_at:,} of {there:,} blocks"

    def blocks(self, split: str) -> int:
        """The number of whole blocks of "train", "valid" or "test" whose every token has one after it."""
        return (len(self.tokens[split]) - 1) // self.block

    def _cut(self, split: str, which: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and targets, (b, block) each, of the blocks at `which`."""
        places = which[:, None] * self.block + torch.arange(self.block + 1, device=self.device)
        found = self.tokens[split][places].long()
        return found[:, :-1], found[:, 1:]

    def build_model(self) -> nn.Module:
        """The model with weights drawn from (seed, "init") on the CPU, not from the global generator."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seeding.key(self.seed, "init"))
            model: Any = models.build(self.model_name, vocabulary=len(self.vocabulary.lengths), **self.options)
        if self.block > model.size.positions:
            raise UserError(
                f"data.block={self.block}, but model.name={self.model_name} has {model.size.positions} positions; take "
                f"data.block={model.size.positions} or less, or model.positions={self.block}"
            )
        return model.to(self.device)

    def probe(self, model: nn.Module) -> None:
        training = model.training
        model.eval()
        with torch.no_grad():
            model(torch.zeros(1, 1, dtype=torch.int64, device=self.device))
        model.train(training)

    def minibatches(self, epoch: int, start: int = 0) -> Iterator[list[Microbatch | None]]:
        """The epoch's minibatches from index `start` on; the last one holds what is left of the blocks."""
        order = torch.randperm(self.blocks("train"), generator=seeding.generator("cpu", self.seed, "order", epoch))
        order = order[: self.blocks_per_epoch].to(self.device)
        for index in range(start, self.steps_per_epoch):
            inputs, targets = self._cut("train", order[index * self.batch_size : (index + 1) * self.batch_size])
            parts = zip(inputs.tensor_split(self.microbatches), targets.tensor_split(self.microbatches), strict=True)
            yield [Microbatch(x, y, targets.numel()) if len(y) else None for x, y in parts]

    def loss(self, model: nn.Module, microbatch: Microbatch) -> Tensor:
        """Sum of the microbatch's cross entropies (nats) / number of targets in the whole minibatch."""
        logits = model(microbatch.inputs)
        total = functional.cross_entropy(logits.flatten(0, 1), microbatch.targets.flatten(), reduction="sum")
        return total / microbatch.count

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Loss (nats per token), bits per byte and perplexity (of a token) on valid; the caller sets eval mode."""
        return self._score(model, "valid", self._valid)

    @torch.no_grad()
    def _score(self, model: nn.Module, split: str, which: Tensor) -> dict[str, float]:
        nats = torch.zeros((), dtype=torch.float64, device=self.device)
        length = torch.zeros((), dtype=torch.int64, device=self.device)
        for part in which.split(max(EVALUATION_TOKENS // self.block, 1)):
            inputs, targets = self._cut(split, part)
            logits = model(inputs).float().flatten(0, 1)
            nats += functional.cross_entropy(logits, targets.flatten(), reduction="none").double().sum()
            length += self._lengths[targets].sum()
        loss = nats.item() / (len(which) * self.block)
        bits = nats.item() / math.log(2) / length.item()
        return {"loss": loss, self.metric: bits, "perplexity": math.exp(min(loss, 700.0))}

    def test(self, model: nn.Module, checkpoints: Any = None) -> dict[str, float] | None:
        """Loss, bits per byte and perplexity on all of test, or None where tuning forbids to look at it."""
        if not self.score_test:
            return None
        return self._score(model, "test", torch.arange(self.blocks("test"), device=self.device))

    @torch.no_grad()
    def sample(
        self,
        model: nn.Module,
        prompt: bytes,
        tokens: int,
        temperature: float = 1.0,
        top_k: int | None = None,
        seed: int = 0,
    ) -> bytes:
        """`tokens` tokens drawn one by one after `prompt` (UTF-8, not empty), without the prompt.

        Each is drawn from softmax(logits / temperature) over the `top_k` likeliest (None: all), 0 being the likeliest
        itself, by a generator of its own. What lies further back than a block is forgotten. The caller sets eval mode.
        """
        known = torch.tensor(self.vocabulary.encode(prompt).astype(np.int64))
        draw = seeding.generator("cpu", seed, "sample")
        for _ in range(tokens):
            logits = model(known[None, -self.block :].to(self.device))[0, -1].float().cpu()
            if temperature == 0:
                chosen = logits.argmax(keepdim=True)
            else:
                if top_k is not None and top_k < len(logits):
                    logits[logits < logits.topk(top_k).values[-1]] = -math.inf
                chosen = torch.multinomial((logits / temperature).softmax(-1), 1, generator=draw)
            known = torch.cat([known, chosen])
        return self.vocabulary.decode(known[len(known) - tokens :].tolist())


def build(cfg: Any, device: torch.device, memory_format: str) -> LanguageModelling:
    """The language modelling task that `cfg` describes; its text is made or taken from where it was made before."""
    from pipemare_exp.data import cache, running_text

    described = data.describe(cfg.task.name)
    assert isinstance(described, running_text.RunningText)
    if models.find(cfg.model.name).takes != "tokens":
        allowed = " or ".join(models.taking("tokens"))
        raise UserError(f"model.name={cfg.model.name} with task {cfg.task.name}: language modelling trains {allowed}")
    if cfg.data.block is None:
        raise UserError(f"data.block is not set, and task {cfg.task.name} needs it: the tokens of a sequence")
    root = cache.data_root(cfg.data.root)
    source = described.source(root)
    text = running_text.prepare(cfg.task.name, source, root)
    vocabulary, tokens = running_text.tokens(text, cfg.data.bpe_merges)
    wanted = ("positions", "layers", "width", "heads", "feedforward", "dropout", "attention_dropout", "tying")
    task = LanguageModelling(
        cfg.task.name,
        vocabulary,
        tokens,
        seed=cfg.seed,
        model=cfg.model.name,
        options={name: getattr(cfg.model, name) for name in wanted},
        block=cfg.data.block,
        batch_size=cfg.data.batch_size,
        microbatches=cfg.pipeline.microbatches,
        blocks_per_epoch=cfg.data.blocks_per_epoch,
        valid_blocks=cfg.evaluation.blocks,
        score_test=cfg.data.validation == 0,
        device=device,
    )
    task.text, task.subset = text.digest, source.subset
    task.notes["text"] = text.digest
    if source.subset:
        task.notes["train"] = f"{source.subset:,}-{source.unit} subset"
    return task
