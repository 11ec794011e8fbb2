"""Predicted outputs: followed while they are right, found again after each departure."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from outrider.proposers import Context, Prediction
from outrider.testing import ScriptedRunner
from outrider.testing.runner import hashed_logits
from support import Harness, perfect


def replay(prediction: Sequence[int], said: Sequence[int], window: int = 8) -> tuple[int, int]:
    """Passes that an answer takes when this prediction is drafted from, and draft tokens that were wrong."""
    proposer = Prediction()
    tokens = [500, 501, said[0]]
    context = Context("r", tokens, 2, prediction=tuple(prediction))
    at, passes, wrong = 1, 1, 0
    while at < len(said):
        (draft,) = proposer.propose([context], [window])
        assert len(draft.tokens) == len(draft.confidence) <= window
        right = 0
        for guess, real in zip(draft.tokens, said[at:], strict=False):
            if guess != real:
                break
            right += 1
        wrong += len(draft.tokens) - right
        new = said[at : at + right + 1]
        tokens.extend(new)
        at += len(new)
        passes += 1
    return passes, wrong


TEXT = list(range(10, 110))


def test_a_prediction_that_comes_true_is_taken_whole() -> None:
    assert replay(TEXT, TEXT)[0] <= 2 + len(TEXT) // 9


def test_each_edit_costs_few_passes() -> None:
    changed = [*TEXT[:30], 1, *TEXT[31:60], 2, 3, 4, *TEXT[60:80], *TEXT[90:]]  # replaced, inserted, deleted
    assert replay(TEXT, changed)[0] <= 2 + len(TEXT) // 9 + 3 + 4 + 3


def test_it_is_found_behind_an_introduction() -> None:
    assert replay(TEXT, [1, 2, 3, 4, *TEXT])[0] <= 5 + 2 + len(TEXT) // 9


def test_repeated_lines_are_followed_in_their_order() -> None:
    lines = [token for number in range(20) for token in (1, 2, 3, 4, 50 + number)]
    assert replay(lines, lines)[0] <= 2 + len(lines) // 9
    once = [*lines[:47], 99, *lines[48:]]
    assert replay(lines, once)[0] <= 2 + len(lines) // 9 + 4


def test_of_equal_places_the_nearest_is_taken() -> None:
    lines = [token for number in range(20) for token in (1, 2, 50 + number)]
    proposer = Prediction()
    tokens = [500, *lines[:30], 98, 97, 1, 2]
    (draft,) = proposer.propose([Context("r", tokens, 1, prediction=lines)], [1])
    assert draft.tokens[0] in (60, 61, 62)


def test_no_prediction_no_draft() -> None:
    assert not Prediction().propose([Context("r", [1, 2], 1)], [4])[0].tokens


def test_a_wrong_prediction_is_never_sure() -> None:
    proposer = Prediction()
    tokens = [500, 1, 2, 3]
    (draft,) = proposer.propose([Context("r", tokens, 1, prediction=tuple(TEXT))], [4])
    assert all(confidence < 0.8 for confidence in draft.confidence)


@given(st.lists(st.integers(0, 5), max_size=40), st.lists(st.integers(0, 5), min_size=1, max_size=60))
def test_any_prediction_drafts_from_itself_only(prediction: list[int], said: list[int]) -> None:
    proposer = Prediction()
    tokens = [500]
    for token in said:
        tokens.append(token)
        (draft,) = proposer.propose([Context("r", tokens, 1, prediction=prediction)], [6])
        text = "".join(map(str, draft.tokens))
        assert text in "".join(map(str, prediction))
        assert all(0.0 < confidence < 1.0 for confidence in draft.confidence)
    proposer.release(Context("r", tokens, 1))
    assert not proposer._alignments


def test_the_engine_says_the_same_with_a_wrong_and_a_right_prediction() -> None:
    runner = ScriptedRunner(hashed_logits(64, order=3, seed=2), vocabulary=64, context_length=512, num_blocks=256)
    harness = Harness(runner, proposers=[Prediction()], speculation="fixed:8")
    plain = harness.answer([1, 2, 3], max_tokens=60, speculation="off")
    right = harness.answer([1, 2, 3], max_tokens=60, prediction=plain.token_ids)
    wrong = harness.answer([1, 2, 3], max_tokens=60, prediction=plain.token_ids[::-1])
    assert plain.token_ids == right.token_ids == wrong.token_ids
    assert right.usage.passes < 10 < wrong.usage.passes


def test_what_a_prediction_foretold_is_counted_whoever_drafted_it() -> None:
    script = hashed_logits(64, order=3, seed=2)
    runner = ScriptedRunner(script, vocabulary=64, context_length=512, num_blocks=256)
    harness = Harness(runner, proposers=[Prediction(), perfect(script)], speculation="fixed:8")
    plain = harness.answer([1, 2, 3], max_tokens=60, speculation="off")
    assert plain.usage.accepted_prediction == plain.usage.rejected_prediction == 0
    right = harness.answer([1, 2, 3], max_tokens=60, prediction=plain.token_ids)
    half = harness.answer([1, 2, 3], max_tokens=60, prediction=plain.token_ids[:30])
    none = harness.answer([1, 2, 3], max_tokens=60)
    assert harness.core.stats.by_source["oracle"].accepted > half.usage.accepted, "the other one drafted nothing"
    assert right.usage.accepted_prediction == right.usage.accepted > 40
    assert 20 <= half.usage.accepted_prediction < 30 < half.usage.accepted
    assert none.usage.accepted_prediction == 0 < none.usage.accepted
