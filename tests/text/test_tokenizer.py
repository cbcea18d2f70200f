"""The tokenizer: text to ids and back, bytes of a token, and files that can't be used."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import CheckpointError, UnsupportedError
from outrider.text.tokenizer import Tokenizer
from tests.support.bytelevel import MERGED, library_tokenizer, small_tokenizer, write_tokenizer

TOKENIZER = small_tokenizer()
EOS, THINK = TOKENIZER.encode("<|eos|><think>")


def test_a_folder_without_tokenizer_gives_none(tmp_path: Path) -> None:
    assert Tokenizer.load(tmp_path) is None


def test_load_reads_the_file(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    loaded = Tokenizer.load(tmp_path)
    assert loaded is not None
    assert loaded.encode("hello wé") == TOKENIZER.encode("hello wé")
    assert loaded.vocab_size == TOKENIZER.vocab_size == 256 + len(MERGED) + 1 + 2


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b'{"model": 3}', b"\xff\xfe", b'{"version": "1.0"}'])
def test_a_broken_file_is_one_clear_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json isn't a usable tokenizer"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("decoder", [None, {"type": "WordPiece", "prefix": "##", "cleanup": True}])
def test_another_kind_of_tokenizer_is_refused(tmp_path: Path, decoder: object) -> None:
    write_tokenizer(tmp_path, decoder=decoder)
    with pytest.raises(UnsupportedError, match="byte-level"):
        Tokenizer.load(tmp_path)


def test_a_byte_level_decoder_inside_a_sequence_is_found(tmp_path: Path) -> None:
    inner = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    write_tokenizer(tmp_path, decoder={"type": "Sequence", "decoders": [inner]})
    assert Tokenizer.load(tmp_path) is not None


def test_every_byte_is_its_own_token() -> None:
    assert [TOKENIZER.token_bytes(b) for b in range(256)] == [bytes([b]) for b in range(256)]


def test_merged_tokens_have_all_their_bytes() -> None:
    for text in MERGED:
        (id,) = TOKENIZER.encode(text)
        assert TOKENIZER.token_bytes(id) == text.encode()


def test_special_and_unknown_ids_have_no_bytes() -> None:
    assert TOKENIZER.token_bytes(EOS) == b""
    assert [TOKENIZER.token_bytes(id) for id in (-1, TOKENIZER.vocab_size, 2**31)] == [b"", b"", b""]
    assert TOKENIZER.token_bytes(THINK) == b"<think>"
    assert TOKENIZER.decode([*b"a", EOS, *b"b", THINK, 10**6]) == "ab<think>"


def test_markers_in_a_text_are_tokens_only_where_asked() -> None:
    text = "a<|eos|>b<think>"
    assert TOKENIZER.encode(text) == [ord("a"), EOS, ord("b"), THINK]
    plain = TOKENIZER.encode(text, special=False)
    assert EOS not in plain and THINK not in plain
    assert TOKENIZER.decode(plain) == text


@given(st.text())
def test_encode_then_decode_is_the_text(text: str) -> None:
    text = text.encode("utf-8", "ignore").decode()
    assert TOKENIZER.decode(TOKENIZER.encode(text, special=False)) == text


@given(st.lists(st.integers(0, TOKENIZER.vocab_size - 2)))
def test_decode_agrees_with_the_library(ids: list[int]) -> None:
    """Where the bytes are UTF-8; what the library makes of other bytes is its own affair."""
    data = b"".join(map(TOKENIZER.token_bytes, ids))
    if data == data.decode("utf-8", "ignore").encode():
        assert TOKENIZER.decode(ids) == library_tokenizer().decode(ids, skip_special_tokens=True)
