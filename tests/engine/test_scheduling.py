"""Admission, chunks, preemption, cancellation, deadlines, n, echo: who runs when, and what they are told."""

from __future__ import annotations

import numpy as np
import pytest

from outrider.engine.pacing import ChunkPacer
from outrider.errors import InvalidRequest
from outrider.testing import ManualClock, ScriptedRunner
from outrider.testing.runner import hashed_logits
from support import Harness


def test_a_long_prompt_does_not_stall_those_who_decode() -> None:
    run = Harness(ScriptedRunner(context_length=400, num_blocks=200), speculation="off", chunk_tokens=64)
    run.add("hi", "short", max_tokens=60)
    run.step()
    run.add([7] * 300, "long", max_tokens=1)
    while not run.answers["long"][0].tokens:
        before = len(run.answers["short"][0].tokens)
        run.step()
        assert len(run.answers["short"][0].tokens) == before + 1
    run.run()


def test_a_short_prompt_does_not_wait_for_a_long_one() -> None:
    run = Harness(ScriptedRunner(context_length=400, num_blocks=200), chunk_tokens=32)
    run.add([7] * 300, "long", max_tokens=1)
    run.add([8] * 20, "short", max_tokens=1)
    run.step()
    run.step()
    assert run.answers["short"][0].tokens
    assert not run.answers["long"][0].tokens
    run.run()


def test_prompts_share_a_pass_and_leave_nothing_of_it_unused() -> None:
    run = Harness(ScriptedRunner(context_length=400, num_blocks=200), chunk_tokens=32)
    for name, length in (("a", 4), ("b", 100), ("c", 100)):
        run.add([ord(name)] * length, name, max_tokens=1)
    run.step()
    assert [len(s.tokens) for s in run.runner.batches[0]] == [4, 14, 14]  # type: ignore[attr-defined]
    run.run()


def test_the_pacer_keeps_a_mixed_pass_within_its_stretch() -> None:
    pacer = ChunkPacer(chunk_tokens=256, stretch=2.5)
    assert pacer.limit(decoding=0) == 256
    assert pacer.limit(decoding=3) == 8
    for _ in range(50):
        pacer.observe(decoding=3, prompt_tokens=0, drafted=0, seconds=0.020)
        tokens = pacer.limit(decoding=3)
        pacer.observe(decoding=3, prompt_tokens=tokens, drafted=0, seconds=0.020 + 0.001 * tokens)
    assert pacer.limit(decoding=3) == pytest.approx(30, abs=1)
    for _ in range(50):  # a long context behind the chunk makes each of its tokens dear, yet it must get on
        pacer.observe(decoding=3, prompt_tokens=8, drafted=0, seconds=0.080)
    assert pacer.limit(decoding=3) == 8


def test_a_chunk_that_seems_free_does_not_unbound_the_next() -> None:
    pacer = ChunkPacer(chunk_tokens=100_000, stretch=2.0)
    pacer.observe(1, 0, 0, 0.020)
    pacer.observe(1, 8, 0, 0.010)
    assert pacer.limit(1) <= 8 * 50


def taught_pacer(drafted: int = 0, remainder: int = 0) -> ChunkPacer:
    """One that saw passes of 4 and of 12 sequences, 10 ms and 1 ms a token each, with and without a chunk of 20."""
    pacer = ChunkPacer(chunk_tokens=256, stretch=2.0)
    for _ in range(50):
        for decoding in (4, 12):
            for prompt_tokens in (0, 20, *([remainder] if remainder else [])):
                seconds = 0.010 + 0.001 * (decoding + drafted + prompt_tokens) + (0.006 if prompt_tokens else 0.0)
                pacer.observe(decoding, prompt_tokens, drafted, seconds)
    return pacer


def test_the_pacer_knows_a_pass_by_its_sequences() -> None:
    pacer = taught_pacer()
    few, many = pacer.limit(4), pacer.limit(12)
    assert (few, many) == (int(0.014 / 0.0013), int(0.022 / 0.0013))  # 6 ms above the tokens' own in chunks of 20
    assert few < pacer.limit(7) < pacer.limit(11) <= many  # not seen: from the nearest that was


def test_drafts_make_the_chunks_beside_them_no_smaller() -> None:
    assert taught_pacer(drafted=8).limit(4) >= taught_pacer().limit(4)


def test_a_pass_with_drafts_where_none_are_usual_tells_a_tokens_price() -> None:
    pacer, other = taught_pacer(), taught_pacer()
    for _ in range(50):
        pacer.observe(4, 20, 10, 0.010 + 0.001 * 34 + 0.009)
    assert pacer.limit(4) == pytest.approx(other.limit(4), abs=1)


def test_the_few_tokens_at_a_prompts_end_do_not_pass_for_dear_ones() -> None:
    with_ends = taught_pacer(remainder=1)
    # a chunk of one costs 7 ms: as a mean of prices a token would cost 4.2 ms and the chunks would be 8
    assert with_ends.limit(12) == int(0.022 / ((0.026 + 0.007) / 21))


def test_the_one_that_came_last_is_preempted_and_comes_back_first() -> None:
    run = Harness(ScriptedRunner(num_blocks=8, context_length=32), speculation="off")
    for name in "abc":
        run.add([ord(name)] * 6, name, max_tokens=12)
    while run.core.scheduler.preemptions == 0:
        run.step()
    run.add([1] * 6, "later", max_tokens=2)
    assert next(s.group.request.id for s in run.core.scheduler.waiting) == "c"
    run.run()
    assert [len(run.answers[name][0].tokens) for name in "abc"] == [12, 12, 12]


def test_a_request_that_does_not_fit_now_waits_and_keeps_its_turn() -> None:
    run = Harness(ScriptedRunner(num_blocks=8, context_length=32), speculation="off")
    run.add([1] * 20, "large", max_tokens=4)
    run.step()
    run.add([2] * 20, "next", max_tokens=1)
    run.add([3], "small", max_tokens=1)
    run.step()
    assert not run.answers["small"][0].tokens  # no overtaking: the head of the queue is not starved
    run.run()


def test_max_running_bounds_the_batch() -> None:
    run = Harness(max_running=2, speculation="off")
    for i in range(5):
        run.add([i + 1], f"r{i}", max_tokens=3)
    run.run()
    assert max(len(batch) for batch in run.runner.batches) == 2  # type: ignore[attr-defined]


def test_n_counts_against_max_running() -> None:
    run = Harness(max_running=4, speculation="off")
    run.add("ab", "three", n=3, temperature=1.0, max_tokens=5)
    run.add("cd", "two", n=2, temperature=1.0, max_tokens=5)
    run.run()
    assert max(len(batch) for batch in run.runner.batches) <= 4  # type: ignore[attr-defined]


def test_n_computes_the_prompt_once_and_gives_different_texts() -> None:
    run = Harness(speculation="off")
    run.add([5] * 10, "r", n=4, temperature=1.5, seed=3, max_tokens=8)
    run.run()
    assert run.runner.widths[:2] == [10, 4]  # type: ignore[attr-defined]
    texts = [tuple(answer.token_ids) for answer in run.answers["r"]]
    assert len(set(texts)) == 4
    assert all(answer.usage.completion_tokens == 8 for answer in run.answers["r"])


@pytest.mark.parametrize("steps", [0, 1, 2, 4])
def test_cancel_at_any_moment_frees_everything(steps: int) -> None:
    run = Harness(chunk_tokens=4)
    run.add([5] * 10, "r", n=3, temperature=1.0, max_tokens=50)
    for _ in range(steps):
        run.step()
    run.core.cancel("r")
    assert [answer.finish_reason for answer in run.answers["r"]] == ["cancelled"] * 3
    assert not run.core.has_work
    assert run.core.pool.used == 0
    run.core.cancel("r")
    run.core.cancel("never there")


def test_a_deadline_ends_what_runs_and_what_waits() -> None:
    clock = ManualClock()
    run = Harness(clock=clock, max_running=1)
    run.add("ab", "runs", max_tokens=100, timeout=5.0)
    run.add("cd", "waits", max_tokens=100, timeout=3.0)
    run.step()
    run.step()
    clock.advance(4.0)
    run.step()
    assert run.answers["waits"][0].finish_reason == "deadline"
    assert run.answers["waits"][0].token_ids == []
    assert run.answers["runs"][0].finish_reason is None
    clock.advance(2.0)
    run.step()
    assert run.answers["runs"][0].finish_reason == "deadline"
    assert run.answers["runs"][0].tokens
    assert run.core.pool.used == 0


def test_timings_follow_the_clock() -> None:
    clock = ManualClock(100.0)
    run = Harness(clock=clock, speculation="off")
    run.add("ab", max_tokens=2)
    clock.advance(1.0)
    run.step()
    clock.advance(2.0)
    run.step()
    timings = run.answers["r"][0].timings
    assert (timings.queued, timings.ttft, timings.decode) == (1.0, 1.0, 2.0)


@pytest.mark.parametrize("chunk", [3, 256])
@pytest.mark.parametrize("length", [1, 4, 10])
def test_echo_with_log_probabilities_scores_the_prompt(chunk: int, length: int) -> None:
    script = hashed_logits(256, order=2)
    run = Harness(ScriptedRunner(script), chunk_tokens=chunk, speculation="fixed:2")
    prompt = [65 + i for i in range(length)]
    for _ in range(2):  # the second time the prompt is in the prefix cache, and still is scored
        answer = run.answer(prompt, echo=True, logprobs=0, max_tokens=3)
        assert answer.text.startswith("ABCDEFGHIJ"[:length])
        assert answer.prompt_logprobs is not None
        assert answer.prompt_logprobs[0] is None
        for position, scored in enumerate(answer.prompt_logprobs[1:], start=1):
            row = script(prompt[:position]).astype(np.float64)
            assert scored is not None
            assert scored.logprob == pytest.approx(row[prompt[position]] - np.log(np.exp(row).sum()), abs=1e-4)
        assert len(answer.prompt_logprobs) == length


def test_scoring_alone_generates_nothing() -> None:
    run = Harness()
    answer = run.answer("abc", echo=True, logprobs=0, max_tokens=0)
    assert (answer.text, answer.token_ids, answer.finish_reason) == ("abc", [], "length")
    assert answer.prompt_logprobs is not None
    run.add("abc", "several", n=2, temperature=1.0, echo=True, max_tokens=0)
    run.run()
    assert [answer.text for answer in run.answers["several"]] == ["abc", "abc"]


def test_an_echo_comes_once_and_first() -> None:
    run = Harness(speculation="off")
    run.add("abc", max_tokens=4, echo=True)
    run.run()
    assert run.chunks[0].text.startswith("abc")
    assert run.answers["r"][0].text.count("abc") == 1


def test_a_repeated_prompt_is_found_in_the_cache() -> None:
    run = Harness(speculation="off")
    first = run.answer([9] * 20, max_tokens=4)
    second = run.answer([9] * 20, max_tokens=4)
    assert (first.usage.cached_tokens, second.usage.cached_tokens) == (0, 16)
    assert first.token_ids == second.token_ids
    run.add([9] * 20, "several", n=2, temperature=1.0, max_tokens=1)
    run.run()
    assert [answer.usage.cached_tokens for answer in run.answers["several"]] == [16, 16]


def test_logits_that_are_not_numbers_end_that_request_only() -> None:
    def script(tokens: list[int]) -> np.ndarray:
        row = hashed_logits(256, order=2)(tokens)
        return row * np.float32(np.nan) if tokens[0] == 66 and len(tokens) > 4 else row

    run = Harness(ScriptedRunner(script), speculation="off")  # type: ignore[arg-type]
    run.add("A", "good", max_tokens=10)
    run.add("B", "bad", max_tokens=10)
    run.run()
    assert run.answers["bad"][0].finish_reason == "error"
    assert "nan" in (run.answers["bad"][0].error or "")
    assert len(run.answers["good"][0].tokens) == 10


@pytest.mark.parametrize(
    ("prompt", "fields", "message"),
    [
        ([], {}, "no tokens"),
        ([1] * 256, {}, "256 tokens and the context is 256"),
        ([256], {}, "prompt has token 256; the vocabulary has 256"),
        ([1], {"logit_bias": {999: 1.0}}, "logit_bias has token 999"),
        ([1], {"stop_token_ids": [-1]}, "stop_token_ids has token -1"),
        ([1], {"n": 17, "temperature": 1.0}, "n=17 is more than max_running=16"),
        ([1], {"timeout": 0.0}, "timeout=0.0"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(prompt: list[int], fields: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        Harness().add(prompt, **fields)


def test_a_context_bounded_by_memory_says_so() -> None:
    with pytest.raises(InvalidRequest, match=r"context is 16 \(bounded by the KV memory; give more\)"):
        Harness(ScriptedRunner(num_blocks=4)).add([1] * 16)


def test_an_id_in_use_is_refused() -> None:
    run = Harness()
    run.add("a", "same")
    with pytest.raises(InvalidRequest, match="'same' is in use"):
        run.add("b", "same")
