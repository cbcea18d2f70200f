"""The checkpoint's own byte-level BPE tokenizer: text to token ids, and a token id to the bytes it stands for."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import tokenizers

from outrider.errors import CheckpointError, RequestError, UnsupportedError


@cache
def _bytes_of_characters() -> dict[str, int]:
    """Byte-level BPE writes each byte as one printable character: that table, from character to byte.

    A byte that is printable in Latin-1 stands for itself; the other 68 are written from U+0100 on, in order.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    shifted = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(shifted)}


class Tokenizer:
    """A byte-level BPE tokenizer as ``tokenizer.json`` describes it. Immutable: all sequences share one.

    *Special* tokens (markers such as the end of text) have no bytes: they never show in a decoded text. Other added
    tokens, and all ordinary ones, are shown. An id that the file doesn't know (a vocabulary padded by the model's
    head) has no bytes either.
    """

    def __init__(self, description: str) -> None:
        """``description`` is the text of a ``tokenizer.json``; anything the library can't read raises from there."""
        self._description = description
        self._inner = tokenizers.Tokenizer.from_str(description)
        self._added = {
            id: b"" if token.special else token.content.encode()
            for id, token in self._inner.get_added_tokens_decoder().items()
        }
        self._bytes: dict[int, bytes] = {}

    @classmethod
    def load(cls, folder: str | Path) -> Tokenizer | None:
        """The tokenizer of a checkpoint's folder, None where it has no ``tokenizer.json``.

        Raises CheckpointError for a file that can't be read, UnsupportedError for one that isn't byte-level BPE.
        """
        path = Path(folder) / "tokenizer.json"
        if not path.is_file():
            return None
        try:
            description = path.read_text(encoding="utf-8")
            fields = json.loads(description)
            tokenizer = cls(description)
        except Exception as error:  # the library raises bare Exception for a file that it can't build from
            raise CheckpointError(f"{path} isn't a usable tokenizer: {error}.", hint="Copy the file again.") from error
        if not _byte_level(fields.get("decoder")):
            raise UnsupportedError(f"{path} isn't a byte-level BPE tokenizer, the only kind that DeepSeek-V4 uses.")
        return tokenizer

    @cached_property
    def vocab_size(self) -> int:
        """One more than the highest id that the file knows. The model's head may be wider (padding)."""
        return max(self._inner.get_vocab(with_added_tokens=True).values()) + 1

    @cached_property
    def _plain(self) -> tokenizers.Tokenizer:
        """The same tokenizer without added tokens: what they are spelt with is ordinary text to it."""
        fields: dict[str, Any] = json.loads(self._description)
        return tokenizers.Tokenizer.from_str(json.dumps(fields | {"added_tokens": [], "post_processor": None}))

    def encode(self, text: str, special: bool = True) -> list[int]:
        """Token ids of ``text``; nothing is put before or after it.

        ``special`` True reads a marker spelt in the text (``<｜User｜>``) as that one token, as a rendered chat prompt
        needs. False reads it as the characters that it is made of: for text by someone who mustn't write markers.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise RequestError(
                f"the prompt has half of a surrogate pair at character {error.start}, which is no text.", param="prompt"
            ) from error
        inner = self._inner if special else self._plain
        return list(inner.encode(text, add_special_tokens=False).ids)

    def token_bytes(self, id: int) -> bytes:
        """The bytes that a token stands for: part of a character, or several; b"" for special and unknown ids."""
        known = self._bytes.get(id)
        if known is None:
            known = self._bytes[id] = self._look_up(id)
        return known

    def _look_up(self, id: int) -> bytes:
        if id in self._added:
            return self._added[id]
        spelling = (self._inner.id_to_token(id) if id >= 0 else None) or ""
        table = _bytes_of_characters()
        return bytes(table[character] for character in spelling)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ``ids``: special tokens are skipped, bytes that aren't UTF-8 become U+FFFD."""
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", errors="replace")


def _byte_level(decoder: dict[str, Any] | None) -> bool:
    """True where the ``decoder`` entry of a tokenizer.json is ByteLevel, alone or in a sequence."""
    if not decoder:
        return False
    return decoder.get("type") == "ByteLevel" or any(map(_byte_level, decoder.get("decoders", ())))
