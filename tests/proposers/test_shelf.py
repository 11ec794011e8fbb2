"""The shelf against a search by brute force, in every way that text gets into it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.proposers import shelf as module
from outrider.proposers.shelf import BYTES_PER_TOKEN, LEVELS, SMALLEST, Shelf, Trail


def trail_of(text: list[int]) -> Trail:
    trail = Trail()
    for position, token in enumerate(text):
        trail.add(token, [text[position - n] if position >= n else 0 for n in LEVELS])
    return trail


def brute_force(kept: list[int], text: list[int]) -> dict[int, int]:
    """All places of two or more matching tokens with a token after them."""
    found = {}
    for after in range(2, len(kept)):
        back = 0
        while back < min(after, len(text), module.DEEPEST) and kept[after - 1 - back] == text[-1 - back]:
            back += 1
        if back >= 2:
            found[after] = back
    return found


runs = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=50), min_size=1, max_size=6)


@given(runs, st.lists(st.integers(0, 3), min_size=2, max_size=40), st.booleans())
@settings(max_examples=300)
def test_finds_what_brute_force_finds(parts: list[list[int]], text: list[int], rebuild: bool) -> None:
    shelf = Shelf(4096)
    for part in parts:
        shelf.extend(part)
        if rebuild:
            shelf.resize(SMALLEST)
        shelf.part()
    found = shelf.find(text, trail_of(text), most=10_000)
    assert found == brute_force(shelf.tokens().tolist(), text)
    few = shelf.find(text, trail_of(text), most=3)
    assert len(few) == min(3, len(found))
    if found:
        longest = max(found.values())
        level = max(n for n in LEVELS if n <= longest)
        assert max(few.values()) >= level


@given(st.lists(st.integers(-1, 5), max_size=200))
@settings(max_examples=200)
def test_filling_at_once_is_pushing_one_by_one(tokens: list[int]) -> None:
    one, other = Shelf(SMALLEST), Shelf(SMALLEST)
    for token in tokens:
        one._push(token)
    other._fill(np.array(tokens, np.int32))
    for name in ("_tokens", "_heads", "_end"):
        assert getattr(one, name) == getattr(other, name)
    assert one.trail.length == other.trail.length
    assert one.trail.hashes == other.trail.hashes
    for token in (1, 2, 1, 2, 3):
        one.append(token)
        other.append(token)
    text = [1, 2]
    assert one.find(text, trail_of(text), 50) == other.find(text, trail_of(text), 50)


def test_the_oldest_falls_out_and_is_not_found() -> None:
    shelf = Shelf(SMALLEST)
    shelf.extend([7, 8, 9])
    shelf.part()
    shelf.extend([5, 6, 1])
    rng = np.random.default_rng(0)
    shelf.extend(rng.integers(100, 1000, SMALLEST - 4).tolist())
    assert shelf.find([7, 8], trail_of([7, 8]), 8) == {}
    assert len(shelf.tokens()) == shelf.size == SMALLEST
    assert shelf.find([5, 6], trail_of([5, 6]), 8) == {6: 2}


def test_a_ring_that_turned_many_times_still_agrees_with_brute_force() -> None:
    shelf = Shelf(SMALLEST)
    rng = np.random.default_rng(1)
    for token in rng.integers(0, 12, 5_000).tolist():
        shelf.append(token)
    text = shelf.tokens().tolist()[-40:]
    found = shelf.find(text, shelf.trail, most=10_000)
    first = shelf.length - shelf.size
    kept = shelf.tokens().tolist()
    assert {position - first: matched for position, matched in found.items()} == {
        after: matched for after, matched in brute_force(kept, text).items() if after < len(kept)
    }


def test_it_grows_to_its_capacity_and_no_further() -> None:
    shelf = Shelf(3_000)
    shelf.extend(list(range(1, 10_000)))
    for token in range(5):
        shelf.append(token)
    assert shelf.size == 4096
    assert shelf.nbytes == 4096 * BYTES_PER_TOKEN


@pytest.mark.parametrize("count", [SMALLEST, 20_000])
def test_a_token_costs_the_same_at_any_size(count: int) -> None:
    """Counted in comparisons of tokens, not in seconds."""
    touched = 0

    class Counting(Shelf):
        def _matched(self, position: int, text: list[int]) -> int:  # type: ignore[override]
            nonlocal touched
            touched += 1
            return super()._matched(position, text)

    shelf = Counting(1 << 20)
    shelf.extend([position * 7919 % 101 for position in range(count)])
    text = shelf.tokens().tolist()
    shelf.find(text, shelf.trail, 8)
    assert touched <= 8 * len(LEVELS)
