"""The cuts, the race and the shaping, against their definitions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.params import SamplingParams
from outrider.proposers import Draft
from outrider.verify import Sampler, token_logprobs, verify
from outrider.verify.distribution import draw, target_distribution
from outrider.verify.noise import Purpose, exponential, race_bits, uniform

PINNED_BITS = [3148464205, 1933879771, 2825394573, 1314189463]
PINNED_UNIFORM = 0.3723959240914809

logits = st.lists(st.sampled_from([-5.0, -1.0, 0.0, 0.5, 0.5, 2.0, 9.0]), min_size=2, max_size=40)


def params(**fields: float) -> SamplingParams:
    return SamplingParams(**{"temperature": 1.0, **fields})


def kept(scores: list[float], **fields: float) -> list[int]:
    found = target_distribution(np.array(scores, np.float32), params(**fields))
    return list(range(len(scores))) if found.ids is None else found.ids.tolist()


@given(logits, st.integers(1, 45))
def test_top_k_keeps_the_likeliest_and_of_equals_the_first(scores: list[float], k: int) -> None:
    order = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
    assert kept(scores, top_k=k) == sorted(order[:k])


@given(logits, st.floats(0.05, 0.999))
@settings(max_examples=300)
def test_top_p_keeps_the_smallest_set_that_reaches_it(scores: list[float], top_p: float) -> None:
    weights = np.exp(np.array(scores, np.float32) - max(scores)).astype(np.float64)
    order = sorted(range(len(scores)), key=lambda i: (-weights[i], i))
    found = kept(scores, top_p=top_p)
    assert found == sorted(order[: len(found)])
    total = weights.sum()
    assert weights[found].sum() >= top_p * total * (1 - 1e-6)
    if len(found) > 1:
        assert weights[order[: len(found) - 1]].sum() < top_p * total * (1 + 1e-6)


def test_top_p_with_a_flat_tail_needs_the_whole_vocabulary() -> None:
    assert len(kept([0.0] * 50_000, top_p=0.9)) == 45_000


@given(logits, st.floats(0.01, 1.0))
def test_min_p_is_relative_to_the_likeliest(scores: list[float], min_p: float) -> None:
    weights = np.exp(np.array(scores, np.float32) - np.float32(max(scores)))
    assert kept(scores, min_p=min_p) == [i for i, w in enumerate(weights) if w >= min_p]


@given(logits, st.integers(0, 2**64 - 1), st.integers(0, 10_000), st.sampled_from([0, 3]))
def test_the_race_is_won_by_the_largest_weight_over_exponential(
    scores: list[float], seed: int, position: int, top_k: int
) -> None:
    found = target_distribution(np.array(scores, np.float32), params(top_k=top_k))
    bits = race_bits(seed, 0, position, len(scores))
    ids = np.arange(len(scores)) if found.ids is None else found.ids
    assert found.race(bits) == ids[(found.weights / exponential(bits)[ids]).argmax()]


def test_a_smaller_vocabulary_sees_the_same_noise() -> None:
    assert (race_bits(7, 1, 99, 1000)[:333] == race_bits(7, 1, 99, 333)).all()


def test_noise_differs_by_seed_stream_position_purpose_and_window() -> None:
    points = {(s, t, p, q, w) for s in (0, 1) for t in (0, 1) for p in (0, 1) for q in (1, 2) for w in (0, 1)}
    assert len({uniform(s, t, p, Purpose(q), w) for s, t, p, q, w in points}) == len(points)


def test_noise_is_what_it_was() -> None:
    """The stream is part of the product: same seed, same text, in the next release too."""
    assert race_bits(42, 0, 7, 4).tolist() == PINNED_BITS
    assert uniform(42, 0, 7, Purpose.ACCEPT, 3) == PINNED_UNIFORM


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8).filter(any), st.floats(0, 1, exclude_max=True))
def test_draw_never_takes_a_weight_of_zero(weights: list[float], u: float) -> None:
    assert weights[draw(np.array(weights), u)] > 0


def test_log_probabilities_are_of_shaped_logits_without_temperature() -> None:
    scores = np.array([1.0, 3.0, 2.0], np.float32)
    found = token_logprobs(scores, 0, top=2)
    exact = np.log(np.exp(scores) / np.exp(scores).sum())
    assert found.logprob == pytest.approx(exact[0])
    assert [token for token, _ in found.top] == [1, 2]
    assert [value for _, value in found.top] == pytest.approx([exact[1], exact[2]])


def test_logits_that_are_not_numbers_are_an_error_and_not_a_token() -> None:
    sampler = Sampler(SamplingParams(), seed=0, stream=0, prompt=[0], vocabulary=3)
    with pytest.raises(FloatingPointError, match="nan"):
        verify(np.array([[1.0, np.nan, 0.0]], np.float32), Draft(), sampler)


@given(st.lists(st.integers(0, 5), max_size=12), st.lists(st.integers(0, 5), max_size=12))
def test_pop_undoes_push(prompt: list[int], pushed: list[int]) -> None:
    def fresh() -> Sampler:
        fields = {"repetition_penalty": 1.3, "frequency_penalty": 0.5, "presence_penalty": 0.2}
        return Sampler(SamplingParams(**fields), seed=0, stream=0, prompt=prompt, vocabulary=6)

    row = np.linspace(-1, 1, 6, dtype=np.float32)
    sampler = fresh()
    for token in pushed:
        sampler.push(token)
    for token in reversed(pushed):
        sampler.pop(token)
    assert (sampler.shape(row) == fresh().shape(row)).all()
    assert sampler.position == len(prompt)
