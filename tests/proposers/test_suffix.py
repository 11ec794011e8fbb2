"""The suffix proposer and its store: what it repeats, what it keeps apart, what it forgets, what it saves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import InvalidRequest
from outrider.proposers import Context, Draft, Suffix, SuffixStore
from outrider.proposers.shelf import BYTES_PER_TOKEN, SMALLEST
from outrider.proposers.suffix import PROMPT_TAIL
from outrider.testing import ScriptedRunner
from outrider.testing.runner import hashed_logits
from support import Harness


def draft(proposer: Suffix, tokens: list[int], budget: int = 8, name: str = "r", tenant: str | None = "") -> Draft:
    (made,) = proposer.propose([Context(name, tokens, len(tokens), tenant=tenant)], [budget])
    return made


def answer(proposer: Suffix, prompt: list[int], said: list[int], tenant: str | None = "") -> None:
    """A request that came and went."""
    proposer.release(Context("gone", [*prompt, *said], len(prompt), tenant=tenant))


def test_what_followed_in_the_own_text_follows_again() -> None:
    assert list(draft(Suffix(), [1, 2, 3, 4, 5, 9, 1, 2], 3).tokens) == [3, 4, 5]


def test_a_copy_past_the_end_goes_on_as_a_period() -> None:
    assert list(draft(Suffix(), [7, 8, 7, 8, 7, 8], 5).tokens) == [7, 8, 7, 8, 7]


def test_the_more_frequent_continuation_wins_and_says_how_sure() -> None:
    often = [1, 2, 3, 9, 1, 2, 3, 8, 1, 2, 4, 9, 1, 2, 3, 7, 1, 2]
    made = draft(Suffix(), often, 1)
    assert list(made.tokens) == [3]
    always = draft(Suffix(), [1, 2, 3, 9, 1, 2, 3, 8, 1, 2, 3, 7, 1, 2], 1, name="other")
    assert made.confidence[0] < always.confidence[0]


def test_a_longer_match_counts_more_than_a_frequent_one() -> None:
    tokens = [5, 6, 7, 1, 2, 4, 0, 1, 2, 3, 9, 1, 2, 3, 8, 5, 6, 7, 1, 2]
    assert draft(Suffix(), tokens, 1).tokens[0] == 4


def test_the_window_ends_where_the_evidence_does() -> None:
    proposer = Suffix(SuffixStore(SMALLEST))
    rng = np.random.default_rng(0)
    for _ in range(8):  # eight answers that agree in three tokens and then scatter
        answer(proposer, [1, 2], [3, 4, 5, *rng.integers(100, 1000, 20).tolist()])
    made = draft(proposer, [50, 1, 2], 20)
    assert list(made.tokens[:3]) == [3, 4, 5]
    assert 3 < len(made.tokens) < 9
    assert list(made.confidence[:3]) == sorted(made.confidence[:3])
    assert made.confidence[3] < 0.3


def test_an_answer_is_remembered_behind_the_end_of_its_prompt() -> None:
    proposer = Suffix(SuffixStore(SMALLEST))
    prompt = list(range(100, 100 + 2 * PROMPT_TAIL))
    answer(proposer, prompt, [1, 2, 3])
    assert list(draft(proposer, prompt, 5).tokens) == [1, 2, 3]
    assert proposer.store is not None
    assert proposer.store.tokens == {"": PROMPT_TAIL + 3 + 1}


def test_answers_of_prompts_that_end_alike_are_told_apart() -> None:
    proposer = Suffix(SuffixStore(SMALLEST))
    template = [90, 91, 92, 93, 94]
    for number in range(20):
        answer(proposer, [number + 200, 9, number + 300, *template], [number + 10, number + 40, 7])
    for number in (0, 7, 19):
        made = draft(proposer, [number + 200, 9, number + 300, *template], 3, name=f"r{number}")
        assert list(made.tokens) == [number + 10, number + 40, 7]


def test_nothing_of_one_tenant_is_drafted_to_another() -> None:
    proposer = Suffix(SuffixStore(2 * SMALLEST))
    answer(proposer, [1, 2, 3], [4, 5, 6], tenant="a")
    assert list(draft(proposer, [1, 2, 3], name="1", tenant="a").tokens) == [4, 5, 6]
    assert not draft(proposer, [1, 2, 3], name="2", tenant="b").tokens
    assert not draft(proposer, [1, 2, 3], name="3", tenant=None).tokens
    answer(proposer, [7, 8, 9], [4, 5, 6], tenant=None)
    assert proposer.store is not None
    assert set(proposer.store.tokens) == {"a"}


def test_without_a_store_nothing_is_remembered() -> None:
    proposer = Suffix()
    answer(proposer, [1, 2, 3], [4, 5, 6])
    assert not draft(proposer, [1, 2, 3]).tokens


def test_release_forgets_the_request() -> None:
    proposer = Suffix()
    draft(proposer, [1, 2, 1, 2])
    proposer.release(Context("r", [1, 2, 1, 2], 4))
    proposer.release(Context("never seen", [1], 1))
    assert not draft(proposer, [1, 2]).tokens


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(1, 3_000)), max_size=30), st.integers(1, 6))
def test_memory_is_bounded_whatever_comes(runs: list[tuple[str, int]], bound: int) -> None:
    store = SuffixStore(bound * SMALLEST)
    for tenant, length in runs:
        store.remember(tenant, [1] * length)
        assert store.nbytes <= bound * SMALLEST * BYTES_PER_TOKEN
        assert store.tokens[tenant] > 0


def test_a_tenant_that_floods_pushes_out_its_own_text_not_anothers() -> None:
    store = SuffixStore(8 * SMALLEST)
    proposer = Suffix(store)
    answer(proposer, [1, 2, 3], [4, 5, 6], tenant="quiet")
    rng = np.random.default_rng(0)
    for _ in range(100):
        store.remember("loud", rng.integers(0, 1000, 500).tolist())
    assert list(draft(proposer, [1, 2, 3], tenant="quiet").tokens) == [4, 5, 6]
    assert store.tokens["loud"] >= 3 * SMALLEST


def test_what_was_saved_is_there_again(tmp_path: Path) -> None:
    proposer = Suffix(SuffixStore(2 * SMALLEST))
    answer(proposer, [1, 2, 3], [4, 5, 6], tenant="a")
    answer(proposer, [1, 2, 3], [7, 8, 9], tenant="b")
    assert proposer.store is not None
    proposer.store.save(tmp_path / "store" / "s.npz", 100)
    assert (tmp_path / "store" / "s.npz").stat().st_mode & 0o077 == 0
    again = Suffix(SuffixStore(2 * SMALLEST))
    assert again.store is not None
    again.store.load(tmp_path / "store" / "s.npz", 100)
    assert again.store.tokens == proposer.store.tokens
    assert list(draft(again, [1, 2, 3], name="1", tenant="a").tokens) == [4, 5, 6]
    assert list(draft(again, [1, 2, 3], name="2", tenant="b").tokens) == [7, 8, 9]
    with pytest.raises(InvalidRequest, match="a model of 100 tokens, this one has 101"):
        again.store.load(tmp_path / "store" / "s.npz", 101)


def test_a_file_that_is_no_store_is_refused_and_none_is_fine(tmp_path: Path) -> None:
    store = SuffixStore(SMALLEST)
    store.load(tmp_path / "none.npz", 100)
    (tmp_path / "bad.npz").write_text("text")
    with pytest.raises(InvalidRequest, match="is not a store"):
        store.load(tmp_path / "bad.npz", 100)
    with pytest.raises(InvalidRequest, match="a store of 5 tokens"):
        SuffixStore(5)


def test_repeated_traffic_takes_few_passes_and_says_the_same() -> None:
    script = hashed_logits(64, order=3, seed=2)
    runner = ScriptedRunner(script, vocabulary=64, context_length=512, num_blocks=256)
    harness = Harness(runner, proposers=[Suffix(SuffixStore(SMALLEST))], speculation="fixed:8")
    first = harness.answer([1, 2, 3, 4], max_tokens=60)
    again = harness.answer([1, 2, 3, 4], max_tokens=60)
    assert again.token_ids == first.token_ids
    assert again.usage.passes <= 8 < first.usage.passes
