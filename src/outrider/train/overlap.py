"""Whether prompts that a draft is measured with, or close copies of them, were trained on."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from pydantic import BaseModel

_WORD = re.compile(r"\w+")


class Overlap(BaseModel):
    """What was found."""

    words_in_a_row: int
    prompts: int
    short_prompts: int
    """Prompts of fewer words than that; they count as copied when an answer has all of them in a row."""
    answers: int
    words: int
    """Of all answers."""
    copies: dict[str, str]
    """For each prompt that shares so many words in a row with an answer, the first of them."""


def find_overlap(prompts: Mapping[str, str], answers: Iterable[str], words: int = 13) -> Overlap:
    """Look for runs of words that a prompt and an answer have in common, case and punctuation aside.

    Args:
        prompts: texts by id.
        answers: texts that were trained on.
        words: length of a run; 13 is the field's usual measure (Brown et al. 2020).
    """
    wanted: dict[int, dict[tuple[str, ...], str]] = {}
    short = 0
    for name, text in prompts.items():
        said = _words(text)
        length = min(words, len(said))
        short += length < words
        for run in _runs(said, length):
            wanted.setdefault(length, {}).setdefault(run, name)
    copies: dict[str, str] = {}
    count = total = 0
    for text in answers:
        said = _words(text)
        count += 1
        total += len(said)
        for length, runs in wanted.items():
            for run in _runs(said, length):
                name_found = runs.get(run)
                if name_found is not None:
                    copies.setdefault(name_found, " ".join(run))
    return Overlap(
        words_in_a_row=words, prompts=len(prompts), short_prompts=short, answers=count, words=total, copies=copies
    )


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _runs(said: list[str], length: int) -> Iterator[tuple[str, ...]]:
    return (tuple(said[start : start + length]) for start in range(len(said) - length + 1)) if length else iter(())
