"""What people report against other speculative decoders, one test a symptom."""

from __future__ import annotations

import numpy as np
import pytest

import oracle
from outrider.params import SamplingParams
from outrider.proposers import PromptLookup
from outrider.runners import Segment
from outrider.testing import ByteCodec, ScriptedRunner
from outrider.testing.runner import hashed_logits
from support import Harness, OracleProposer, perfect

V = 16
SCRIPT = hashed_logits(V, order=2, sharpness=3.0, seed=5)
PROMPT = [1, 2, 3]


def truth(count: int = 40) -> list[int]:
    tokens = list(PROMPT)
    while len(tokens) < len(PROMPT) + count:
        tokens.append(int(SCRIPT(tokens).argmax()))
    return tokens[len(PROMPT) :]


def harness(**fields: object) -> Harness:
    runner = ScriptedRunner(SCRIPT, vocabulary=V, context_length=64)
    letters = ByteCodec([bytes([ord("a") + i]) for i in range(V)])
    return Harness(runner, codec=letters, **{"proposer": perfect(SCRIPT), "speculation": "fixed:5", **fields})  # type: ignore[arg-type]


def first_at(token: int, tokens: list[int]) -> int:
    return tokens.index(token)


def late_token(tokens: list[int]) -> int:
    """A token that is first said inside the second window, neither first nor last of it."""
    return next(t for t in tokens if first_at(t, tokens) in (2, 3, 4))


def test_text_goes_on_past_an_end_of_text_inside_the_window() -> None:
    tokens = truth()
    end = late_token(tokens)
    where = first_at(end, tokens)
    answer = harness(eos_ids=(end,)).answer(PROMPT)
    assert answer.token_ids == tokens[: where + 1]
    assert answer.finish_reason == "stop"
    assert answer.text == "".join(chr(ord("a") + t) for t in tokens[:where])


def test_usage_counts_tokens_behind_a_stop() -> None:
    tokens = truth()
    end = late_token(tokens)
    where = first_at(end, tokens)
    run = harness(eos_ids=(end,))
    answer = run.answer(PROMPT)
    assert answer.usage.completion_tokens == where + 1
    # the first token is the target's, and so is the end: a draft is cut before it; what lay behind was never judged
    assert (answer.usage.accepted, answer.usage.rejected) == (where - 1, 0)
    assert run.core.stats.accepted == where - 1
    assert run.core.stats.emitted == where + 1


def test_a_stop_string_over_several_tokens_of_one_window_leaks() -> None:
    tokens = truth()
    letters = "".join(chr(ord("a") + t) for t in tokens)
    stop = letters[2:4]
    where = letters.find(stop)
    answer = harness().answer(PROMPT, stop=[stop])
    assert answer.text == letters[:where]
    assert answer.finish_reason == "stop"
    assert answer.usage.completion_tokens == where + len(stop)


@pytest.mark.parametrize("mode", ["off", "fixed:5"])
def test_log_probabilities_are_missing_zero_or_of_the_wrong_position(mode: str) -> None:
    answer = harness(speculation=mode).answer(PROMPT, max_tokens=12, logprobs=3)
    seen = list(PROMPT)
    for token in answer.tokens:
        row = SCRIPT(seen).astype(np.float64)
        exact = row - np.log(np.exp(row).sum())
        assert token.logprobs is not None
        assert token.logprobs.logprob == pytest.approx(exact[token.id], abs=1e-5)
        assert [t for t, _ in token.logprobs.top] == np.argsort(-exact)[:3].tolist()
        seen.append(token.id)
    assert len(answer.tokens) == 12


@pytest.mark.parametrize(
    "fields",
    [
        {"repetition_penalty": 1.8},
        {"presence_penalty": 2.0},
        {"frequency_penalty": 1.0},
        {"temperature": 1.5, "min_p": 0.3, "seed": 4},
        {"logit_bias": {10: -100.0}},
    ],
    ids=lambda fields: next(iter(fields)) if "min_p" not in fields else "min_p",
)
def test_a_good_draft_weakens_penalties(fields: dict[str, object]) -> None:
    """The draft here is what the target says without them: the temptation is as great as can be."""
    params = SamplingParams(max_tokens=20, **fields)
    answer = harness().answer(PROMPT, **params.model_dump())
    wanted, _ = oracle.generate(SCRIPT, PROMPT, params, seed=params.seed or 0, context_length=64)
    assert answer.token_ids == wanted
    plain, _ = oracle.generate(SCRIPT, PROMPT, SamplingParams(max_tokens=20), context_length=64)
    assert wanted != plain


def test_minimum_length_is_ignored_for_drafted_ends() -> None:
    tokens = truth()
    end = late_token(tokens)
    answer = harness(eos_ids=(end,)).answer(PROMPT, min_tokens=10, max_tokens=12)
    assert len(answer.tokens) >= 10
    assert end not in answer.token_ids[:10]


def test_a_seed_is_not_honoured() -> None:
    def text(seed: int, mode: str) -> list[int]:
        return harness(speculation=mode).answer(PROMPT, max_tokens=20, temperature=1.2, seed=seed).token_ids

    assert text(1, "off") == text(1, "fixed:5") == text(1, "fixed:1")
    assert text(1, "off") != text(2, "off")


def test_output_drifts_with_batch_mates() -> None:
    alone = harness().answer(PROMPT, max_tokens=20, temperature=1.0, seed=9).token_ids
    crowd = harness()
    for i in range(7):
        crowd.add([i, i + 1, i], f"mate{i}", max_tokens=5 + i, temperature=1.0, seed=i)
    crowd.add(PROMPT, "me", max_tokens=20, temperature=1.0, seed=9)
    crowd.run()
    assert crowd.answers["me"][0].token_ids == alone


@pytest.mark.parametrize("left", [1, 2, 3, 5, 6])
def test_crash_near_the_context_limit(left: int) -> None:
    run = harness()
    prompt = [i % V for i in range(64 - left)]
    answer = run.answer(prompt)
    assert len(answer.tokens) == left
    assert answer.finish_reason == "length"
    assert all(s.start + len(s.tokens) <= 64 for batch in run.runner.batches for s in batch)  # type: ignore[attr-defined]


def test_the_window_runs_past_max_tokens() -> None:
    run = harness()
    answer = run.answer(PROMPT, max_tokens=4)
    assert len(answer.tokens) == 4
    # three tokens are left after the first: two to draft and the target's own
    assert run.runner.widths == [3, 3]  # type: ignore[attr-defined]


def test_a_rejected_last_draft_token_leaves_the_cache_one_too_long() -> None:
    def last_wrong(tokens: list[int], most: int) -> list[int]:
        right = perfect(SCRIPT)._continuation(tokens, most)
        return [*right[:-1], (right[-1] + 1) % V]

    run = harness(proposer=OracleProposer(last_wrong))
    answer = run.answer(PROMPT, max_tokens=20)
    assert answer.token_ids == truth(20)
    starts = [batch[0].start for batch in run.runner.batches]  # type: ignore[attr-defined]
    assert starts[:5] == [0, 3, 8, 13, 18]  # four accepted and the target's own, each time


def test_rejected_tokens_fill_the_prefix_cache() -> None:
    def all_wrong(tokens: list[int], most: int) -> list[int]:
        return [(t + 1) % V for t in perfect(SCRIPT)._continuation(tokens, most)]

    run = harness(proposer=OracleProposer(all_wrong))
    first = run.answer(PROMPT, max_tokens=20)
    # a second turn over the same text finds it in the cache and must go on from the right keys and values
    again = run.answer([*PROMPT, *first.token_ids], max_tokens=10)
    assert again.usage.cached_tokens > 0
    assert again.token_ids == truth(30)[20:]


def test_speculation_cannot_be_chosen_per_request() -> None:
    run = harness(speculation="off")
    run.add(PROMPT, "plain", max_tokens=12)
    run.add(PROMPT, "fast", max_tokens=12, speculation="fixed:3")
    run.run()
    assert run.answers["plain"][0].usage.passes == 11
    assert run.answers["fast"][0].usage.passes == 3
    assert run.answers["plain"][0].token_ids == run.answers["fast"][0].token_ids


def test_time_to_first_token_is_raised_by_drafting() -> None:
    """Nothing is drafted before a request has said its first token."""
    proposer = perfect(SCRIPT)
    run = harness(proposer=proposer)
    run.add(PROMPT, max_tokens=8)
    run.step()
    assert len(run.answers["r"][0].tokens) == 1
    assert proposer.asked == 0


def test_off_still_pays_for_drafting() -> None:
    proposer = perfect(SCRIPT)
    run = harness(proposer=proposer, speculation="off")
    run.answer(PROMPT, max_tokens=8)
    assert proposer.asked == 0
    assert run.core.pool.num_blocks == run.core.pool.available


def test_a_proposer_that_raises_kills_the_request() -> None:
    class Broken(PromptLookup):
        def propose(self, contexts: object, budget: object) -> list:  # type: ignore[override,type-arg]
            raise RuntimeError("broken")

    run = harness(proposer=Broken())
    assert run.answer(PROMPT, max_tokens=10).token_ids == truth(10)
    assert (run.core.drafters[0].faults, run.core.drafters[0].benchings) == (3, 1)


@pytest.mark.parametrize("draft", [[V], [-1], [1, 2, 3, 4, 5, 6]], ids=["too large", "negative", "too many"])
def test_a_proposer_that_talks_nonsense_crashes_the_engine(draft: list[int]) -> None:
    class Nonsense(OracleProposer):
        def propose(self, contexts: object, budget: object) -> list:  # type: ignore[override,type-arg]
            from outrider.proposers import Draft

            return [Draft(draft, [0.5] * len(draft)) for _ in budget]  # type: ignore[attr-defined]

    run = harness(proposer=Nonsense(lambda tokens, most: []))
    assert run.answer(PROMPT, max_tokens=10).token_ids == truth(10)
    assert run.core.drafters[0].faults > 0


def test_speculation_preempts_a_running_request() -> None:
    """A window is cut before it takes a block from anybody."""
    runner = ScriptedRunner(SCRIPT, vocabulary=V, context_length=16, num_blocks=4)
    run = Harness(runner, proposer=perfect(SCRIPT), speculation="fixed:7")
    run.add([1, 2, 3], "a", max_tokens=5)
    run.add([1, 2, 3], "b", max_tokens=5)
    run.run()
    assert run.core.scheduler.preemptions == 0
    assert run.answers["a"][0].token_ids == run.answers["b"][0].token_ids == truth(5)


def test_the_scripted_cache_notices_what_was_never_computed() -> None:
    """The tests above lean on it."""
    runner = ScriptedRunner(SCRIPT, vocabulary=V)
    with pytest.raises(RuntimeError, match="never computed"):
        runner.forward([Segment([1], 3, [0], 1)])
