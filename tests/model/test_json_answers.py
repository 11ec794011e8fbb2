"""Grammars over the real model's tokens."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from outrider.api import Engine, chat
from outrider.errors import InvalidRequest
from outrider.params import Grammar

pytestmark = pytest.mark.model
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "colours": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "age", "colours"],
    "additionalProperties": False,
}
ASK = chat("Give me a person as JSON with a name, an age and favourite colours.")


@pytest.mark.parametrize("fields", [{}, {"temperature": 0.9, "seed": 4}])
def test_json_follows_its_schema_and_is_the_same_with_and_without_speculation(
    engine: Engine, fields: dict[str, Any]
) -> None:
    texts = set()
    for mode in ("off", "auto", "fixed:6"):
        answer = engine.generate(ASK, grammar=Grammar.json_schema(SCHEMA), max_tokens=120, speculation=mode, **fields)
        assert answer.finish_reason == "stop"
        texts.add(answer.text)
    assert len(texts) == 1
    found = json.loads(texts.pop())
    assert set(found) == {"name", "age", "colours"}
    assert 0 <= found["age"] <= 120
    assert set(found["colours"]) <= {"red", "green", "blue"}


def test_a_regular_expression_and_a_lark_grammar(engine: Engine) -> None:
    date = engine.generate(chat("When?"), grammar=Grammar(kind="regex", source=r"\d{4}-\d\d-\d\d"), max_tokens=30)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", date.text)
    said = engine.generate(chat("Is it?"), grammar=Grammar(kind="lark", source='start: "yes" | "no"'), max_tokens=5)
    assert said.text in ("yes", "no")


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        (Grammar(kind="json_schema", source="{"), "the json_schema cannot be used"),
        (Grammar.json_schema({"type": "thing"}), "the json_schema cannot be used"),
        (Grammar(kind="regex", source="("), "the regex cannot be used"),
        (Grammar(kind="lark", source="start: missing"), "the lark cannot be used"),
    ],
)
def test_a_source_that_is_no_grammar_is_refused(engine: Engine, grammar: Grammar, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        engine.generate(ASK, grammar=grammar)


def test_a_grammar_beside_free_requests_in_a_batch(engine: Engine) -> None:
    free = engine.generate(ASK, max_tokens=30).text
    handles = [engine.stream(ASK, max_tokens=30), engine.stream(ASK, grammar=Grammar.json_object(), max_tokens=30)]
    texts = [handle.result().text for handle in handles]
    assert texts[0] == free
    assert texts[1].lstrip().startswith("{")
