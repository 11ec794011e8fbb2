"""Text: whole characters, stop strings across tokens, equality with decoding at once."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from outrider.engine import TextStream
from outrider.testing import ByteCodec

CODEC = ByteCodec()


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[a:b] for a, b in itertools.pairwise(edges)]


@given(st.binary(max_size=40) | st.text(max_size=20).map(str.encode), st.lists(st.integers(0, 100), max_size=20))
def test_random_byte_splits_equal_decoding_at_once(data: bytes, cuts: list[int]) -> None:
    codec = ByteCodec(split(data, cuts))
    ids = list(range(len(codec.token_bytes)))
    stream = TextStream(codec)
    assert "".join([*map(stream.feed, ids), stream.flush()]) == codec.decode(ids)


@given(st.text(max_size=20), st.lists(st.integers(0, 100), max_size=20))
def test_half_a_character_is_never_shown(text: str, cuts: list[int]) -> None:
    codec = ByteCodec(split(text.encode(), cuts))
    stream = TextStream(codec)
    shown = ""
    for token in range(len(codec.token_bytes)):
        shown += stream.feed(token)
        assert text.startswith(shown)
    assert shown + stream.flush() == text


@given(
    st.text("abc", max_size=30),
    st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=3),
    st.lists(st.integers(0, 100), max_size=30),
)
def test_stop_strings_are_found_across_any_tokens(text: str, stops: list[str], cuts: list[int]) -> None:
    """The text ends where the first stop string begins whose end comes first; nothing is shown and taken back."""
    codec = ByteCodec(split(text.encode(), cuts))
    stream = TextStream(codec, stops)
    shown, used = "", 0
    for token in range(len(codec.token_bytes)):
        shown += stream.feed(token)
        used += len(codec.token_bytes[token])
        if stream.stopped:
            break
    shown += stream.flush() if not stream.stopped else ""
    starts = [text[:used].find(stop) for stop in stops if stop in text[:used]]
    assert stream.stopped == bool(starts)
    assert shown == (text[: min(starts)] if starts else text)
    assert not any(stop in shown for stop in stops)


def test_text_that_could_be_a_stop_is_held_back_and_released() -> None:
    stream = TextStream(CODEC, ["STOP"])
    assert [stream.feed(byte) for byte in b"aSTx"] == ["a", "", "", "STx"]
    assert [stream.feed(byte) for byte in b"ST"] == ["", ""]
    assert stream.flush() == "ST"


def test_before_the_minimum_length_nothing_stops() -> None:
    stream = TextStream(CODEC, ["ab"])
    assert [stream.feed(byte, may_stop=False) for byte in b"ab"] == ["a", "b"]
    assert not stream.stopped


def test_special_tokens_have_no_text_unless_asked_for() -> None:
    codec = ByteCodec([b"<end>", b"x"], special_ids=[0])
    assert TextStream(codec).feed(0) == ""
    assert TextStream(codec, skip_special=False).feed(0) == "<end>"
