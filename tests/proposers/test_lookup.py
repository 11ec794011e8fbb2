"""Prompt lookup against a search by brute force."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.errors import InvalidRequest
from outrider.proposers import Context, PromptLookup
from outrider.proposers.lookup import NgramIndex


def brute_force(tokens: list[int], least: int, most: int, count: int) -> list[int]:
    """Longest suffix first, most recent occurrence first, copying on into itself."""
    for length in range(min(most, len(tokens) - 1), least - 1, -1):
        for end in range(len(tokens) - 1, length - 1, -1):
            if tokens[end - length : end] == tokens[-length:]:
                out = list(tokens)
                for step in range(count):
                    out.append(out[end + step])
                return out[len(tokens) :]
    return []


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=60),
    st.integers(1, 3),
    st.integers(0, 4),
    st.integers(1, 12),
    st.integers(1, 60),
)
@settings(max_examples=500)
def test_equals_brute_force(tokens: list[int], least: int, more: int, window: int, prompt: int) -> None:
    """Also when the context came in pieces, and whatever was asked in between."""
    lookup = PromptLookup(least, least + more)
    growing: list[int] = []
    for token in tokens:
        growing.append(token)
        if len(growing) < prompt and len(growing) < len(tokens):
            continue
        (draft,) = lookup.propose([Context("r", growing, prompt)], [window])
        assert list(draft.tokens) == brute_force(growing, least, least + more, window)
        assert len(draft.confidence) == len(draft.tokens)


def test_large_token_ids_do_not_collide() -> None:
    index = NgramIndex(1, 2)
    for token in [2**31, 7, 0, 2**31 + 1, 0]:
        index.append(token)
    assert index.find() == (3, 1)


def test_no_window_no_draft_and_the_index_catches_up() -> None:
    lookup = PromptLookup(1, 4)
    tokens = [1, 2, 3, 1]
    assert lookup.propose([Context("r", tokens, 4)], [0])[0].tokens == ()
    tokens.append(2)
    assert list(lookup.propose([Context("r", tokens, 4)], [2])[0].tokens) == [3, 1]


def test_requests_do_not_see_each_other() -> None:
    lookup = PromptLookup(1, 4)
    lookup.propose([Context("a", [1, 2, 3, 1], 4)], [2])
    (draft,) = lookup.propose([Context("b", [1], 1)], [2])
    assert draft.tokens == ()


def test_release_forgets() -> None:
    lookup = PromptLookup(1, 4)
    lookup.propose([Context("a", [1, 2, 1], 3)], [2])
    lookup.release(Context("a", [1, 2, 1], 3))
    lookup.release(Context("never seen", [1], 1))
    (draft,) = lookup.propose([Context("a", [1], 1)], [2])
    assert draft.tokens == ()


@pytest.mark.parametrize(("least", "most"), [(0, 4), (3, 2)])
def test_contradicting_lengths_are_refused(least: int, most: int) -> None:
    with pytest.raises(InvalidRequest, match=f"min_match={least}"):
        PromptLookup(least, most)


def test_a_step_costs_the_same_at_any_context_length() -> None:
    """Counted in dictionary operations, not in seconds: the index never walks the context."""

    class Counting(dict[int, int]):
        touched = 0

        def get(self, key: int, default: int | None = None) -> int | None:  # type: ignore[override]
            Counting.touched += 1
            return super().get(key, default)

        def __setitem__(self, key: int, value: int) -> None:
            Counting.touched += 1
            super().__setitem__(key, value)

    index = NgramIndex(2, 8)
    index._after = Counting()
    costs = []
    for position in range(3_000):
        Counting.touched = 0
        index.append(position * 7919 % 1009)
        index.find()
        costs.append(Counting.touched)
    assert max(costs[20:]) <= 14
