"""The draft that ships, on its target: the same text, tokens that it brings, every way to verify them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from outrider.api import Engine, chat
from outrider.errors import InvalidRequest, ModelError
from outrider.evaluate.drafts import evaluate_draft
from outrider.evaluate.prompts import BenchPrompt, read_prompts
from outrider.evaluate.ties import find_difference
from outrider.evaluate.validate import validate
from outrider.models import HeadFiles, Resolver
from outrider.params import SamplingParams

pytestmark = [pytest.mark.model, pytest.mark.timeout(900)]

NAME = "smollm2-135m-draft"
PROMPTS = Path(__file__).parent.parent / "data" / "spec_bench_26.jsonl"
FREE = ("writing", "roleplay", "reasoning", "stem", "humanities", "coding")
REQUESTS = {
    "greedy": SamplingParams(max_tokens=40),
    "penalised": SamplingParams(max_tokens=40, repetition_penalty=1.2, presence_penalty=0.3),
    "sampled": SamplingParams(max_tokens=40, temperature=0.8, top_p=0.95, seed=77),
}


def prompts() -> list[BenchPrompt]:
    return [prompt for prompt in read_prompts(PROMPTS, 1) if prompt.category in FREE]


@pytest.fixture(scope="module")
def drafted() -> Iterator[Engine]:
    """The target with its draft and nothing else."""
    with Engine("smollm2-135m", draft=NAME, proposers=(), kv_memory=256 << 20) as engine:
        yield engine


@pytest.mark.parametrize("kind", list(REQUESTS))
@pytest.mark.parametrize("mode", ["fixed:4", "auto"])
def test_the_text_is_that_of_off(drafted: Engine, kind: str, mode: str) -> None:
    params = REQUESTS[kind]
    accepted = 0
    for prompt in prompts():
        plain, fast = (
            drafted.generate(chat(prompt.text), params, speculation=each).completions[0] for each in ("off", mode)
        )
        ids = drafted.encode(chat(prompt.text))
        difference = find_difference(drafted, ids, plain.token_ids, fast.token_ids, params)
        assert difference is None or difference.tie, f"prompt {prompt.id}: {difference}"
        accepted += fast.usage.accepted
    if mode != "auto":  # which may find on a busy machine that it does not pay
        assert accepted > 20


def test_requests_together_and_one_that_leaves(drafted: Engine) -> None:
    asked = [chat(prompt.text) for prompt in prompts()]
    plain = [g.token_ids for g in drafted.generate_batch(asked, max_tokens=32, speculation="off")]
    leaving = drafted.stream(asked[0], max_tokens=200, speculation="fixed:4")
    next(iter(leaving))
    leaving.cancel()
    together = drafted.generate_batch(asked, max_tokens=32, speculation="fixed:4")
    for prompt, one, other in zip(asked, plain, together, strict=True):
        params = SamplingParams(max_tokens=32)
        difference = find_difference(drafted, drafted.encode(prompt), one, other.token_ids, params)
        assert difference is None or difference.tie
    assert drafted.gauges().kv_used == 0


def test_the_end_of_the_context(drafted: Engine) -> None:
    length = drafted.info.context_length
    ids = (drafted.encode("the sea and the sky, ") * length)[:length]
    small = Engine("smollm2-135m", draft=NAME, proposers=(), kv_memory=16 << 20)
    with small:
        room = small.info.num_blocks * small.info.block_size
        for left in (1, 3):
            answer = small.generate(ids[: room - left], max_tokens=20, speculation="fixed:4", ignore_eos=True)
            assert len(answer.token_ids) == left
            assert answer.finish_reason == "length"


def test_it_is_measured_and_advised(drafted: Engine) -> None:
    report = drafted.draft
    assert report is not None
    assert report.kind == "head"
    assert report.kv_bytes == 0
    assert 0 < report.cost_ratio < 0.5
    found = evaluate_draft(drafted, prompts()[:2], 3, SamplingParams(max_tokens=24))
    assert found.overall.tokens_per_pass > 1.1
    assert len(found.overall.acceptance) == 3
    with pytest.raises(InvalidRequest, match="nothing"):
        evaluate_draft(drafted, prompts()[:1], 3, SamplingParams(max_tokens=1))


def test_it_is_found_by_name_and_is_no_target() -> None:
    files = Resolver().resolve_draft(NAME)
    assert isinstance(files, HeadFiles)
    assert files.card.target == "smollm2-135m"
    assert files.bytes < 25 << 20
    assert files.card.minutes >= 90
    with pytest.raises(ModelError, match="give it with --draft"):
        Resolver().resolve(NAME)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("way", ["rejection", "block", "coupled"])
def test_the_distribution_is_the_targets(way: str) -> None:
    """The first three tokens of 20 prompts, 500 draws each, against the model's own probabilities."""
    asked = read_prompts(PROMPTS)[:20]
    with Engine("smollm2-135m", draft=NAME, proposers=(), verification=way, kv_memory=512 << 20) as engine:
        ids = [engine.encode(chat(prompt.text)) for prompt in asked]
        found = validate(engine, ids, "fixed:4", max_tokens=16, draws=500, reproducible=way == "coupled")
    failed = {check.name: check.failures for check in found.checks if not check.passed}
    assert not failed
