"""A small byte-level BPE tokenizer for source code, trained from the training files alone.

Every byte is representable. Units that merges can't cross: newlines with the indent that follows, words with their
leading underscores, single digits, runs of punctuation; each with at most one space before it.
"""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

BOS = "<\uff5cbegin\u2581of\u2581sentence\uff5c>"
EOS = "<\uff5cend\u2581of\u2581sentence\uff5c>"
BOS_ID = 0
EOS_ID = 1

UNITS = r"(?:\r?\n)+[ \t]*| ?_*\p{L}[\p{L}\p{M}]*| ?\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """A BPE of ``vocab_size`` ids: 0 begins a text, 1 ends it, then the 256 bytes, then merges. Deterministic."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(UNITS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[BOS, EOS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer
