"""Prompt files: Spec-Bench's format and plain lines."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from outrider.errors import InvalidRequest

UNSORTED = "prompts"
"""Category of lines that name none."""


@dataclass(frozen=True, slots=True)
class BenchPrompt:
    """One prompt to measure with."""

    id: str
    category: str
    text: str


def read_prompts(path: Path, per_category: int | None = None) -> list[BenchPrompt]:
    """Read JSON lines, plain or gzipped: `{"category", "turns": [...]}` (the first turn is used) or `{"prompt"}`.

    Args:
        path: the file.
        per_category: keep only so many prompts of each category, in the file's order.

    Raises:
        InvalidRequest: the file is missing or a line has another form; the message names the line.
    """
    kept: dict[str, list[BenchPrompt]] = {}
    for prompt in _parse(path):
        group = kept.setdefault(prompt.category, [])
        if per_category is None or len(group) < per_category:
            group.append(prompt)
    prompts = [prompt for group in kept.values() for prompt in group]
    if not prompts:
        raise InvalidRequest(f"{path} has no prompts")
    return prompts


def _parse(path: Path) -> Iterator[BenchPrompt]:
    try:
        open_text = gzip.open if path.suffix == ".gz" else open
        with open_text(path, "rt", encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield _prompt(line, f"{path}, line {number}", number)
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"cannot read {path}: {error}") from None


def _prompt(line: str, where: str, number: int) -> BenchPrompt:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise InvalidRequest(f"{where} is not JSON: {error}") from None
    if isinstance(record, dict):
        turns = record.get("turns")
        text = turns[0] if isinstance(turns, list) and turns else record.get("prompt")
        if isinstance(text, str) and text:
            name = record.get("question_id", record.get("id", number))
            return BenchPrompt(str(name), str(record.get("category", UNSORTED)), text)
    raise InvalidRequest(f'{where} has neither "turns" with a text nor a "prompt"')
