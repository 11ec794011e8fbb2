"""What a request may ask for: refused by name, with the value and the remedy."""

from __future__ import annotations

import pytest

from outrider.engine import EngineConfig
from outrider.errors import InvalidRequest
from outrider.params import SamplingParams, Speculation


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"temperature": -0.1}, r"temperature=-0.1: input should be greater than or equal to 0"),
        ({"temperature": float("nan")}, "temperature=nan"),
        ({"top_p": 0.0}, "top_p=0.0: input should be greater than 0"),
        ({"top_k": -1}, "top_k=-1"),
        ({"min_p": 2}, "min_p=2"),
        ({"repetition_penalty": 0}, "repetition_penalty=0"),
        ({"presence_penalty": 3}, "presence_penalty=3"),
        ({"logit_bias": {1: 101}}, "token 1 has bias 101.0"),
        ({"seed": -1}, "seed=-1"),
        ({"n": 0}, "n=0"),
        ({"n": 2}, "n=2 at temperature 0 gives the same text"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens=5 is more than max_tokens=4"),
        ({"max_tokens": 0}, "max_tokens=0 generates nothing"),
        ({"stop": ["a", ""]}, "must not be empty"),
        ({"logprobs": 21}, "logprobs=21"),
        ({"temprature": 1}, "unknown parameter 'temprature'. Did you mean temperature"),
    ],
)
def test_invalid_values_and_combinations_are_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        SamplingParams(**fields)


def test_one_stop_string_is_a_list_of_one() -> None:
    assert SamplingParams(stop="END").stop == ("END",)
    assert SamplingParams(stop=None).stop == ()


@pytest.mark.parametrize("text", ["off", "auto", "threshold", "fixed:1", "fixed:64"])
def test_speculation_modes_read_and_write(text: str) -> None:
    assert str(Speculation.parse(text)) == text


@pytest.mark.parametrize("text", ["on", "fixed", "fixed:0", "fixed:65", "fixed:-1", "fixed:x", ""])
def test_other_modes_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="use off, auto, threshold or fixed:K"):
        Speculation.parse(text)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_runing": 3}, "unknown parameter 'max_runing'. Did you mean max_running"),
        ({"max_running": 0}, "max_running=0"),
        ({"speculation": "often"}, "speculation='often'"),
        ({"verification": "hope"}, "verification='hope'"),
    ],
)
def test_engine_settings_are_checked(fields: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        EngineConfig(**fields)
