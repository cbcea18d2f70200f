"""Token ids to text, one id at a time: a character is given out as soon as its last byte is there, never before.

What a byte sequence means is decided by Python's own incremental UTF-8 decoder, so that the joined pieces are the
one-shot decode for every split. It holds at most three bytes back, and gives out U+FFFD for a byte as soon as that is
known to be invalid: a run of them neither stalls the text nor grows any state.
"""

from __future__ import annotations

import codecs

from outrider.text.tokenizer import Tokenizer

_make_decoder = codecs.getincrementaldecoder("utf-8")


class Detokeniser:
    """The text of one growing sequence of ids. ``"".join`` of everything given out equals ``tokenizer.decode``."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = _make_decoder(errors="replace")

    def push(self, id: int) -> str:
        """The characters that ``id`` completes: "" while inside one."""
        return self._decoder.decode(self._tokenizer.token_bytes(id))

    def finish(self) -> str:
        """What is left at the end: "" or, for half a character, U+FFFD."""
        return self._decoder.decode(b"", final=True)

    def copy(self) -> Detokeniser:
        """An independent detokeniser in the same state."""
        other = Detokeniser(self._tokenizer)
        other._decoder.setstate(self._decoder.getstate())
        return other
