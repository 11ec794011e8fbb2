"""Differences on the real model: the true runner-up is close or far, and a wrong token is an error."""

from __future__ import annotations

import numpy as np
import pytest

from outrider.api import Engine, chat
from outrider.evaluate.ties import find_difference
from outrider.params import SamplingParams
from outrider.verify.noise import exponential, race_bits

pytestmark = pytest.mark.model


def test_equal_texts_have_no_difference(engine: Engine) -> None:
    assert find_difference(engine, [1, 2], [3, 4], [3, 4], SamplingParams()) is None


def test_a_shorter_text_is_an_error(engine: Engine) -> None:
    found = find_difference(engine, [1, 2], [3, 4], [3], SamplingParams())
    assert found is not None
    assert not found.tie


def test_the_gap_is_that_of_the_logits(engine: Engine) -> None:
    prompt = engine.encode(chat("Name a colour."))
    answer = engine.generate(prompt, max_tokens=3, logprobs=5, speculation="off").completions[0]
    entry = answer.tokens[2].logprobs
    assert entry is not None
    (best, first), (other, second) = entry.top[:2]
    ids = answer.token_ids
    assert best == ids[2]
    found = find_difference(engine, prompt, ids, [*ids[:2], other], SamplingParams())
    assert found is not None
    assert found.position == 2
    assert found.gap == pytest.approx(first - second, abs=0.01)
    wrong = find_difference(engine, prompt, ids, [*ids[:2], 48_000], SamplingParams())
    assert wrong is not None
    assert wrong.gap == float("inf")


def test_the_gap_of_a_sampled_token_counts_the_noise(engine: Engine) -> None:
    params = SamplingParams(max_tokens=1, temperature=0.8, seed=11, logprobs=5)
    prompt = engine.encode(chat("Name a colour."))
    answer = engine.generate(prompt, params, speculation="off").completions[0]
    entry = answer.tokens[0].logprobs
    assert entry is not None
    other = next(token for token, _ in entry.top if token != answer.token_ids[0])
    bits = race_bits(11, 0, len(prompt), engine.info.vocabulary)
    scores = dict(entry.top) | {answer.token_ids[0]: entry.logprob}

    def score(token: int) -> float:
        return scores[token] / 0.8 - float(np.log(exponential(bits[[token]]))[0])

    found = find_difference(engine, prompt, answer.token_ids, [other], params)
    assert found is not None
    assert found.gap == pytest.approx(score(answer.token_ids[0]) - score(other), abs=0.02)
    assert score(answer.token_ids[0]) > score(other)
