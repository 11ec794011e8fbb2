"""The real model says the same with and without speculation: 26 prompts, all windows, alone and in a batch."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from outrider.api import Engine, chat
from outrider.evaluate.prompts import BenchPrompt, read_prompts
from outrider.evaluate.ties import find_difference
from outrider.params import SamplingParams

pytestmark = [pytest.mark.model, pytest.mark.timeout(900)]

PROMPTS = Path(__file__).parent.parent / "data" / "spec_bench_26.jsonl"
REQUESTS = {
    "greedy": SamplingParams(max_tokens=40),
    "sampled": SamplingParams(max_tokens=40, temperature=0.8, top_p=0.95, repetition_penalty=1.1, seed=1234),
}
BATCH = 4


@cache
def prompts() -> list[BenchPrompt]:
    return read_prompts(PROMPTS)


@pytest.fixture(scope="module")
def plain(engine: Engine) -> dict[tuple[str, str], list[int]]:
    """Every answer without speculation, alone."""
    return {
        (kind, prompt.id): engine.generate(chat(prompt.text), params, speculation="off").token_ids
        for kind, params in REQUESTS.items()
        for prompt in prompts()
    }


def assert_same(engine: Engine, prompt: BenchPrompt, kind: str, expected: list[int], found: list[int]) -> None:
    ids = engine.encode(chat(prompt.text))
    difference = find_difference(engine, ids, expected, found, REQUESTS[kind])
    assert difference is None or difference.tie, f"prompt {prompt.id}: {difference}"


def test_there_are_26_prompts_of_13_categories() -> None:
    assert len(prompts()) == 26
    assert len({prompt.category for prompt in prompts()}) == 13


@pytest.mark.parametrize("mode", ["fixed:2", "fixed:4", "fixed:8", "auto"])
@pytest.mark.parametrize("kind", list(REQUESTS))
def test_alone(engine: Engine, plain: dict[tuple[str, str], list[int]], kind: str, mode: str) -> None:
    accepted = 0
    for prompt in prompts():
        answer = engine.generate(chat(prompt.text), REQUESTS[kind], speculation=mode)
        assert_same(engine, prompt, kind, plain[kind, prompt.id], answer.token_ids)
        accepted += answer.usage.accepted
    assert accepted > 0, "nothing was speculated: the test proves nothing"


@pytest.mark.parametrize("window", [2, 4, 8])
@pytest.mark.parametrize("kind", list(REQUESTS))
def test_in_a_batch_of_four(engine: Engine, plain: dict[tuple[str, str], list[int]], kind: str, window: int) -> None:
    for start in range(0, len(prompts()), BATCH):
        batch = prompts()[start : start + BATCH]
        asked = [chat(prompt.text) for prompt in batch]
        answers = engine.generate_batch(asked, REQUESTS[kind], speculation=f"fixed:{window}")
        for prompt, answer in zip(batch, answers, strict=True):
            assert_same(engine, prompt, kind, plain[kind, prompt.id], answer.token_ids)
