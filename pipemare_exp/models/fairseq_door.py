"""The one module that imports fairseq, with what of it the project uses.

fairseq changes the process that imports it: it registers some 110 names in Hydra's ConfigStore (a YAML of the same
name then fails to merge), sets the root logger to DEBUG where no handler is configured, prints warnings of TorchScript
and autocast, and keeps its default configurations as classes that every later model would share. All of that is
undone or kept out here, so that the rest of the project sees a plain library. The import costs about 1.5 s; only
translation pays it.
"""

from __future__ import annotations

import contextlib
import io
import logging
import sys
import warnings
from argparse import Namespace
from collections.abc import Iterator, Sequence
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pipemare_exp.errors import UserError


@contextlib.contextmanager
def _fence() -> Iterator[None]:
    """Undo what the import of fairseq does to Hydra's store, to logging and to the terminal."""
    from hydra.core.config_store import ConfigStore

    store = ConfigStore.instance()
    groups = deepcopy(store.repo)
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    output = io.StringIO()
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            warnings.simplefilter("ignore")
            yield
    finally:
        store.repo = groups
        root.setLevel(level)
        for handler in [h for h in root.handlers if h not in handlers]:
            root.removeHandler(handler)


try:
    with _fence():
        from fairseq.binarizer import FileBinarizer, VocabularyDatasetBinarizer
        from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
        from fairseq.data import Dictionary, LanguagePairDataset, data_utils
        from fairseq.models.transformer import TransformerModel, transformer_iwslt_de_en
        from fairseq.modules import MultiheadAttention
        from fairseq.modules.fairseq_dropout import FairseqDropout
        from fairseq.sequence_generator import SequenceGenerator
except ImportError as error:
    raise UserError(
        f"fairseq cannot be imported ({error}); translation needs the wheel ve-fairseq 0.12.3 of the lock file "
        f"(Python 3.11 or 3.12; here {sys.version_info.major}.{sys.version_info.minor}); run `make venv`"
    ) from error

logging.getLogger("fairseq").setLevel(logging.WARNING)
# fairseq's decoder gives its causal mask as numbers and its padding mask as booleans, at every call.
warnings.filterwarnings("ignore", message="Support for mismatched key_padding_mask and attn_mask is deprecated")

__all__ = [
    "Dictionary",
    "FairseqDropout",
    "LanguagePairDataset",
    "MultiheadAttention",
    "TransformerModel",
    "architecture",
    "batches_by_tokens",
    "binarise",
    "criterion",
    "dictionary_of",
    "forget_beam",
    "generator",
    "languages",
    "load_split",
    "pad_left",
    "registered_types",
    "to_device",
    "version",
]


def version() -> str:
    """The version of the installed fairseq distribution."""
    import fairseq

    return str(fairseq.__version__)


def architecture(**options: Any) -> Namespace:
    """The arguments of `transformer_iwslt_de_en` with `options` put over its defaults.

    A fresh Namespace at each call: fairseq's own default configurations are classes, and changing one would change
    every later model.
    """
    args = Namespace(**options)
    transformer_iwslt_de_en(args)
    return args


def languages(source: Dictionary, target: Dictionary) -> SimpleNamespace:
    """What fairseq's builders ask of a task: its two dictionaries."""
    return SimpleNamespace(source_dictionary=source, target_dictionary=target)


def criterion(target: Dictionary, label_smoothing: float) -> LabelSmoothedCrossEntropyCriterion:
    """fairseq's label-smoothed cross entropy, summed over target tokens (padding left out)."""
    return LabelSmoothedCrossEntropyCriterion(
        SimpleNamespace(target_dictionary=target), sentence_avg=False, label_smoothing=label_smoothing
    )


def generator(
    models: Sequence[nn.Module], target: Dictionary, beam: int, length_penalty: float, max_ratio: float, max_extra: int
) -> Any:
    """fairseq's beam search; a hypothesis has at most `max_ratio * source length + max_extra` tokens."""
    return SequenceGenerator(
        list(models),
        target,
        beam_size=beam,
        len_penalty=length_penalty,
        max_len_a=max_ratio,
        max_len_b=max_extra,
    )


def forget_beam(model: nn.Module) -> None:
    """Take back the beam size that a search leaves on the attention modules: the next one may be narrower."""
    for module in model.modules():
        if isinstance(module, MultiheadAttention):
            module.set_beam_size(1)


def pad_left(sentences: Sequence[Tensor], pad: int) -> Tensor:
    """1-D tensors as rows of one int64 tensor, padded on the left."""
    return data_utils.collate_tokens([s.long() for s in sentences], pad, left_pad=True)


def registered_types() -> tuple[type[nn.Module], type[nn.Module]]:
    """The module types of fairseq that draw dropout masks themselves."""
    return FairseqDropout, MultiheadAttention


def dictionary_of(paths: Sequence[Path], padding_factor: int = 8) -> Dictionary:
    """The dictionary of all words in `paths`, most frequent first, as `fairseq-preprocess` builds it."""
    made = Dictionary()
    for path in paths:
        Dictionary.add_file_to_dictionary(str(path), made, _words, num_workers=1)
    made.finalize(threshold=-1, nwords=-1, padding_factor=padding_factor)
    return made


def _words(line: str) -> list[str]:
    return line.split()


def binarise(text: Path, dictionary: Dictionary, prefix: Path) -> dict[str, int]:
    """Write `prefix`.bin and .idx from `text`, one sentence a line; counts of sentences, tokens and unknown words."""
    summary = FileBinarizer.multiprocess_dataset(
        str(text),
        "mmap",
        VocabularyDatasetBinarizer(dictionary, tokenize=_words, append_eos=True),
        str(prefix),
        vocab_size=len(dictionary),
        num_workers=1,
    )
    return {"sentences": summary.num_seq, "tokens": summary.num_tok, "unknown": summary.num_replaced}


def load_split(
    prefix: Path, source: str, target: str, source_dict: Dictionary, target_dict: Dictionary
) -> LanguagePairDataset:
    """The binarised pairs `prefix`.{source,target}: source padded on the left, target on the right, as fairseq does."""
    sides = []
    for language, words in ((source, source_dict), (target, target_dict)):
        found = data_utils.load_indexed_dataset(f"{prefix}.{language}", words, "mmap")
        if found is None:
            raise UserError(f"{prefix}.{language}.idx is missing; delete {prefix.parent} and run again")
        sides.append(found)
    return LanguagePairDataset(
        sides[0], sides[0].sizes, source_dict, sides[1], sides[1].sizes, target_dict, shuffle=False
    )


def batches_by_tokens(indices: np.ndarray, sizes: np.ndarray, max_tokens: int) -> list[np.ndarray]:
    """Cut `indices` (sorted by length) into batches of at most `max_tokens` tokens, padding counted.

    `sizes[k]` is the length of sentence `indices[k]`: the longer of its two sides.
    """
    return [
        np.asarray(batch, dtype=np.int64)
        for batch in data_utils.batch_by_size(
            indices.astype(np.int64), num_tokens_fn=None, num_tokens_vec=sizes.astype(np.int64), max_tokens=max_tokens
        )
    ]


def to_device(sample: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """`sample` of the collater with its tensors on `device`; nothing is changed in place."""

    def move(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.to(device)
        return {k: move(v) for k, v in value.items()} if isinstance(value, dict) else value

    return {name: move(value) for name, value in sample.items()}
