"""The draft head: right tokens from the target's states, whatever the batch, the sampling and the window."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from outrider.proposers import Context, DraftHead, PromptLookup
from outrider.proposers.vocabulary import VocabularyMap
from outrider.testing import ScriptedRunner
from outrider.testing.runner import hashed_logits
from support import Harness

V = 32
SCRIPT = hashed_logits(V, order=2, seed=4)
SAID = [token for token in range(V) if token % 5]
"""The head cannot say the others."""
OTHER = len(SAID)


def last_two(tokens: Sequence[int]) -> NDArray[np.float32]:
    """A state that says all that the script looks at."""
    return np.array([tokens[-1], len(tokens)], np.float32)


class ScriptedHead:
    """Knows the script: from the last token before and the one that came it foresees what the target says."""

    def __init__(self, noise: float = 0.0) -> None:
        self.infer_seconds = 0.0
        self.batches: list[int] = []
        self._noise = noise
        self._other = hashed_logits(V, order=2, seed=77)

    def start(self, states: NDArray[np.float32]) -> NDArray[np.float32]:
        return states

    def step(
        self, tokens: NDArray[np.int64], state: NDArray[np.float32]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        self.batches.append(len(tokens))
        after = np.array(
            [[SAID[token] if token < OTHER else -1, row[1] + 1] for token, row in zip(tokens, state, strict=True)]
        )
        pairs = [[int(row[0]), int(new[0])] for row, new in zip(state, after, strict=True)]
        rows = [SCRIPT(pair) + self._noise * self._other(pair) for pair in pairs]
        return np.stack(rows)[:, SAID].astype(np.float32), after.astype(np.float32)


def head(noise: float = 0.0, goes_on: Any = None) -> DraftHead:
    return DraftHead(ScriptedHead(noise), VocabularyMap(SAID, V, len(SAID), other=OTHER), goes_on)


def target(states: Any = last_two, **fields: Any) -> ScriptedRunner:
    made = {"vocabulary": V, "context_length": 256, "num_blocks": 256, **fields}
    return ScriptedRunner(SCRIPT, states=states, **made)


def test_what_the_head_can_say_is_always_right() -> None:
    """The script looks at two tokens, and so does the head: only tokens that it cannot say are wrong."""
    proposer = head()
    harness = Harness(target(), proposer=proposer, speculation="fixed:4")
    plain = harness.answer([1, 2, 3], max_tokens=61, speculation="off")
    answer = harness.answer([1, 2, 3], max_tokens=61)
    assert plain.token_ids == answer.token_ids
    accepted = sum(token.accepted for token in answer.tokens)
    assert answer.usage.accepted == accepted > 20
    assert all(token.id in SAID for token in answer.tokens if token.accepted)


@pytest.mark.parametrize("mode", ["fixed:1", "fixed:5", "auto", "threshold"])
@pytest.mark.parametrize("noise", [0.0, 0.3, 9.0])
@pytest.mark.parametrize("fields", [{}, {"temperature": 0.9, "seed": 5, "top_k": 9}, {"repetition_penalty": 1.4}])
def test_the_text_is_that_of_off(mode: str, noise: float, fields: dict[str, Any]) -> None:
    harness = Harness(target(), proposers=[PromptLookup(), head(noise)], speculation=mode)
    plain = harness.answer([1, 2, 3], max_tokens=60, speculation="off", **fields)
    fast = harness.answer([1, 2, 3], max_tokens=60, **fields)
    assert plain.token_ids == fast.token_ids
    assert all(drafter.faults == 0 for drafter in harness.core.drafters)


def test_the_state_is_that_before_the_last_token_whatever_was_accepted() -> None:
    """Each state carries its position: after every verification it is the one before the newest token."""
    seen: list[tuple[int, int, float]] = []

    class Watch(DraftHead):
        def propose(self, contexts: Sequence[Context], budget: Sequence[int]) -> Any:
            for context in contexts:
                assert context.state is not None
                seen.append((len(context.tokens), context.tokens[-2], float(context.state[1])))
                assert context.state[0] == context.tokens[-2]
            return super().propose(contexts, budget)

    watch = Watch(ScriptedHead(0.5), VocabularyMap(SAID, V, len(SAID), other=OTHER))
    harness = Harness(target(), proposer=watch, speculation="fixed:4")
    answer = harness.answer([1, 2, 3], max_tokens=60)
    assert answer.usage.accepted
    assert answer.usage.rejected
    assert all(length - 1 == position for length, _, position in seen)


def test_several_completions_of_one_prompt_have_states_of_their_own() -> None:
    harness = Harness(target(), proposer=head(), speculation="fixed:3")
    fields: dict[str, Any] = {"temperature": 1.0, "seed": 11, "n": 3, "max_tokens": 30}
    for name, mode in (("fast", None), ("plain", "off")):
        harness.add([1, 2, 3], name, speculation=mode, **fields)
        harness.run()
    fast, plain = harness.answers["fast"], harness.answers["plain"]
    assert [answer.token_ids for answer in fast] == [answer.token_ids for answer in plain]
    assert sum(answer.usage.accepted for answer in fast) > 0


def test_a_small_cache_that_preempts_keeps_states_and_text() -> None:
    """Recomputed requests draft from the states of their recomputed text."""
    runner = target(num_blocks=14, context_length=56)
    harness = Harness(runner, proposer=head(), speculation="fixed:3", prefix_caching=False)
    prompts = [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    for number, prompt in enumerate(prompts):
        harness.add(prompt, str(number), max_tokens=24)
    harness.run()
    plain = [harness.answer(prompt, max_tokens=24, speculation="off") for prompt in prompts]
    assert harness.core.scheduler.preemptions > 0
    assert [harness.answers[str(i)][0].token_ids for i in range(3)] == [answer.token_ids for answer in plain]


def test_without_states_nothing_is_drafted() -> None:
    harness = Harness(target(states=None), proposer=head(), speculation="fixed:4")
    answer = harness.answer([1, 2, 3], max_tokens=20)
    assert answer.usage.accepted == answer.usage.rejected == 0


def test_it_stops_where_another_token_does_not_pay() -> None:
    asked: list[int] = []

    def goes_on(name: str, request: str, confidence: Sequence[float], batch: int) -> bool:
        asked.append(len(confidence))
        return len(confidence) < 2

    proposer = head(goes_on=goes_on)
    contexts = [Context(str(i), [1, 2, 3 + i], 3, state=last_two([1, 2])) for i in range(3)]
    drafts = proposer.propose(contexts, [5, 1, 5])
    assert [len(draft.tokens) for draft in drafts] == [2, 1, 2]
    assert set(asked) == {1, 2}
    assert isinstance(proposer.runner, ScriptedHead)
    assert proposer.runner.batches == [3, 2]


@pytest.mark.parametrize("way", ["rejection", "block"])
def test_drawn_drafts_bring_a_distribution_over_the_whole_vocabulary(way: str) -> None:
    harness = Harness(target(), proposer=head(0.3), speculation="fixed:4", verification=way)
    answer = harness.answer([1, 2, 3], max_tokens=80, temperature=1.0, seed=3)
    assert answer.usage.accepted > 10
    assert all(drafter.faults == 0 for drafter in harness.core.drafters)
