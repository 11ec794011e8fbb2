"""The real tokenizer: bytes of tokens, equality with its own decoding, the chat template."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outrider.api import Engine, chat
from outrider.engine import TextStream
from outrider.errors import InvalidRequest
from outrider.models.tokenizer import _sentencepiece_bytes

pytestmark = pytest.mark.model


@given(st.text(max_size=40))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_encoding_and_decoding_keep_the_text(engine: Engine, text: str) -> None:
    tokenizer = engine.tokenizer
    ids = tokenizer.encode(text) if text else []
    decoded = tokenizer.decode(ids, skip_special=False)
    if 0 not in ids:  # the vocabulary lacks a few bytes of rare planes, which become its unknown token
        assert decoded == text
    stream = TextStream(tokenizer, skip_special=False)
    assert "".join([*map(stream.feed, ids), stream.flush()]) == decoded


@given(st.lists(st.integers(0, 49151), min_size=1, max_size=12))
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_our_decoding_is_the_tokenizers_own(engine: Engine, ids: list[int]) -> None:
    tokenizer = engine.tokenizer
    for skip in (True, False):
        theirs = tokenizer._tokenizer.decode(ids, skip_special_tokens=skip)
        # it leaves broken bytes out, where we show U+FFFD
        assert tokenizer.decode(ids, skip_special=skip).replace("\ufffd", "") == theirs.replace("\ufffd", "")


def test_the_chat_template_is_kept(engine: Engine) -> None:
    ids = engine.encode(chat("Hello", system="Be brief."))
    assert engine.tokenizer.decode(ids, skip_special=False) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    )
    assert "Hello" in engine.tokenizer.decode(ids)
    assert "<|im_end|>" not in engine.tokenizer.decode(ids)


def test_a_mixture_is_no_prompt(engine: Engine) -> None:
    with pytest.raises(InvalidRequest, match="not a mixture"):
        engine.encode([1, *chat("x")])  # type: ignore[list-item]


def test_parameters_come_one_way(engine: Engine) -> None:
    from outrider import SamplingParams

    with pytest.raises(InvalidRequest, match="give params or max_tokens, not both"):
        engine.generate("x", SamplingParams(), max_tokens=3)


@pytest.mark.parametrize(
    ("token", "expected"), [("\u2581the", b" the"), ("<0x0A>", b"\n"), ("a\u2581b", b"a b"), ("<0x0A", b"<0x0A")]
)
def test_sentencepiece_tokens(token: str, expected: bytes) -> None:
    assert _sentencepiece_bytes(token.encode()) == expected
