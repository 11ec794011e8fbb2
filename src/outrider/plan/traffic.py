"""Logged traffic: what was asked and what was answered, in the forms that logs have."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outrider.errors import InvalidRequest

UNSORTED = "traffic"
"""Category of lines that name none."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request and its answer."""

    category: str
    messages: tuple[dict[str, str], ...]
    """The conversation up to the answer, or empty where the prompt is plain text."""
    prompt: str
    """The plain prompt, or empty where there is a conversation."""
    response: str
    prediction: str | None = None


def read_traffic(path: Path, limit: int | None = None) -> list[Exchange]:
    """Read JSON lines, plain or gzipped, in their order, which is taken for the order in time.

    A line is `{"prompt", "response"}`; `{"messages": [...]}`, whose last message is the assistant's; or OpenAI's
    request and answer, `{"request": {"messages"}, "response": {"choices"}}` (also with `body` around either, as batch
    files have). `category` and `prediction` may stand in it.

    Raises:
        InvalidRequest: the file cannot be read, a line has another form (it is named), or there is none.
    """
    exchanges: list[Exchange] = []
    try:
        open_text = gzip.open if path.suffix == ".gz" else open
        with open_text(path, "rt", encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                if line.strip() and (limit is None or len(exchanges) < limit):
                    exchanges.append(_exchange(line, f"{path}, line {number}"))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"cannot read {path}: {error}") from None
    if not exchanges:
        raise InvalidRequest(f"{path} has no traffic")
    return exchanges


def _exchange(line: str, where: str) -> Exchange:
    try:
        found = json.loads(line)
        return _parse(found)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
        raise InvalidRequest(
            f'{where} is no exchange; write {{"prompt": ..., "response": ...}}, {{"messages": [...]}} with the '
            'assistant\'s at the end, or OpenAI\'s {"request": ..., "response": ...}'
        ) from None


def _parse(found: dict[str, Any]) -> Exchange:
    category = str(found.get("category", UNSORTED))
    prediction = found.get("prediction")
    if isinstance(prediction, dict):
        prediction = prediction["content"]
    if isinstance(found.get("response"), str):
        return _plain(found, category, prediction)
    if "messages" in found:
        *asked, last = found["messages"]
        if last["role"] != "assistant":
            raise ValueError("no answer")
        return _chat(category, asked, last["content"], prediction)
    request = found["request"].get("body", found["request"])
    response = found["response"].get("body", found["response"])
    answer = response["choices"][0]
    if "messages" in request:
        return _chat(category, request["messages"], answer["message"]["content"], prediction)
    return Exchange(category, (), _text(request["prompt"]), _text(answer["text"]), prediction)


def _plain(found: dict[str, Any], category: str, prediction: str | None) -> Exchange:
    return Exchange(category, (), _text(found["prompt"]), _text(found["response"]), prediction)


def _chat(category: str, asked: list[dict[str, Any]], said: Any, prediction: str | None) -> Exchange:
    messages = tuple({"role": str(turn["role"]), "content": _text(turn["content"])} for turn in asked)
    if not messages:
        raise ValueError("an answer to nothing")
    return Exchange(category, messages, "", _text(said), prediction)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("not a text")
    return value
