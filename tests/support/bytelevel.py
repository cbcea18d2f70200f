"""A small byte-level BPE tokenizer, made by hand: ids 0 to 255 are the bytes, then a few merges and markers.

So a test can write any byte sequence as token ids, valid UTF-8 or not.
"""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Library

from outrider.text.tokenizer import Tokenizer

MERGED = ("he", "ll", "hell", "hello", " w", "é", "你", "END", "EN")
"""Tokens of more than one byte; "你" is three bytes merged from two and one."""


def _spelling(data: bytes) -> str:
    """GPT-2's way to write bytes as characters."""
    kept = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [b for b in range(256) if b not in kept]
    return "".join(chr(b) if b in kept else chr(256 + others.index(b)) for b in data)


def library_tokenizer() -> Library:
    """The tokenizer as an object of the ``tokenizers`` library; markers come last: <|eos|> special, <think> not."""
    vocab = {_spelling(bytes([b])): b for b in range(256)}
    pieces = [*MERGED, "你".encode()[:2]]
    data = sorted({p.encode() if isinstance(p, str) else p for p in pieces}, key=lambda p: (len(p), p))
    merges = []
    for piece in data:
        cut = max(n for n in range(1, len(piece)) if _spelling(piece[:n]) in vocab and _spelling(piece[n:]) in vocab)
        merges.append((_spelling(piece[:cut]), _spelling(piece[cut:])))
        vocab[_spelling(piece)] = len(vocab)
    library = Library(models.BPE(vocab=vocab, merges=merges))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens([AddedToken("<|eos|>", special=True)])
    library.add_tokens([AddedToken("<think>", special=False, normalized=False)])
    return library


def write_tokenizer(folder: Path, **changes: object) -> None:
    """Writes ``tokenizer.json``, with top-level entries replaced by ``changes``."""
    fields = json.loads(library_tokenizer().to_str()) | changes
    (folder / "tokenizer.json").write_text(json.dumps(fields), encoding="utf-8")


def small_tokenizer() -> Tokenizer:
    """The same as Outrider's own object."""
    return Tokenizer(library_tokenizer().to_str())
