"""Grammars under speculation: every token is allowed, and the text is that of plain decoding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from outrider.engine import Completion, Request
from outrider.errors import InvalidRequest
from outrider.params import SamplingParams, Speculation
from outrider.proposers import DraftModel, PromptLookup, VocabularyMap
from outrider.testing import ScriptedRunner
from outrider.testing.runner import hashed_logits
from outrider.verify.distribution import Scores
from support import Harness, RandomProposer, perfect

V = 24
END = 0
SCRIPT = hashed_logits(V, order=3, seed=8)


class Rising:
    """A toy grammar: each token is larger than the one before, or at most 4 to start again; END after twelve."""

    def __init__(self) -> None:
        self.said: list[int] = []

    def _allowed(self, token: int, said: Sequence[int]) -> bool:
        if said and said[-1] == END:
            return False
        if len(said) >= 12:
            return token == END
        return token != END and (not said or token > said[-1] or token <= 4)

    def mask(self, scores: Scores) -> None:
        for token in range(V):
            if not self._allowed(token, self.said):
                scores[token] = -np.inf

    def push(self, token: int) -> None:
        self.said.append(token)

    def pop(self) -> None:
        self.said.pop()

    def accepts(self, tokens: Sequence[int]) -> int:
        said = list(self.said)
        for number, token in enumerate(tokens):
            if not self._allowed(token, said):
                return number
            said.append(token)
        return len(tokens)


def answer(harness: Harness, name: str, speculation: str, **params: Any) -> Completion:
    request = Request(
        name, (5, 6, 7), SamplingParams(**params), speculation=Speculation.parse(speculation), grammar=Rising, seed=3
    )
    harness.core.check(request)
    harness.answers[name] = [Completion(index) for index in range(request.params.n)]
    harness.core.add(request, harness._take)
    harness.run()
    return harness.answers[name][0]


def harness(proposer: Any, **config: Any) -> Harness:
    runner = ScriptedRunner(SCRIPT, vocabulary=V, context_length=128, num_blocks=128)
    return Harness(runner, proposer=proposer, eos_ids=(END,), **config)


PROPOSERS = {
    "lookup": PromptLookup,
    "random": lambda: RandomProposer(V),
    "blind": lambda: perfect(SCRIPT),  # knows the model and not the grammar
    "draft": lambda: DraftModel(
        ScriptedRunner(SCRIPT, vocabulary=V, context_length=128, num_blocks=128), VocabularyMap(None, V, V)
    ),
}


@pytest.mark.parametrize("proposer", PROPOSERS)
@pytest.mark.parametrize("fields", [{}, {"temperature": 1.0, "seed": 3}, {"temperature": 1.5, "seed": 3, "top_k": 5}])
def test_the_text_is_that_of_off_and_every_token_is_allowed(proposer: str, fields: dict[str, Any]) -> None:
    run = harness(PROPOSERS[proposer]())
    plain = answer(run, "plain", "off", **fields)
    assert (len(plain.tokens), plain.finish_reason) == (13, "stop")
    assert Rising().accepts(plain.token_ids) == 13
    for mode in ("fixed:1", "fixed:4", "fixed:16", "auto"):
        assert answer(run, mode, mode, **fields).token_ids == plain.token_ids
    assert run.core.drafters[0].faults == 0


@pytest.mark.parametrize("way", ["rejection", "block"])
@pytest.mark.parametrize("proposer", PROPOSERS)
def test_other_verifications_stay_inside_the_grammar_too(way: str, proposer: str) -> None:
    run = harness(PROPOSERS[proposer](), verification=way)
    for seed in range(20):
        said = answer(run, f"r{seed}", "fixed:4", temperature=1.0, seed=seed).token_ids
        assert Rising().accepts(said) == len(said) == 13


def test_drafts_are_cut_where_they_leave_the_grammar() -> None:
    """A draft model that follows the grammar is right about all of it, its end inside a window included."""
    run = harness(PROPOSERS["draft"]())
    said = answer(run, "r", "fixed:16")
    assert said.usage.rejected == 0
    assert said.usage.passes == 1


def test_forbidden_tokens_are_no_alternatives() -> None:
    run = harness(None)
    for token in answer(run, "r", "off", logprobs=5).tokens:
        assert token.logprobs is not None
        assert all(np.isfinite(value) for _, value in token.logprobs.top)


def test_each_completion_has_a_state_of_its_own() -> None:
    run = harness(PROPOSERS["random"]())
    answer(run, "r", "fixed:3", temperature=1.0, n=3)
    texts = [completion.token_ids for completion in run.answers["r"]]
    assert all(Rising().accepts(text) == len(text) == 13 for text in texts)
    assert texts[0] != texts[1]


@pytest.mark.parametrize("fields", [{"ignore_eos": True}, {"min_tokens": 3}])
def test_what_contradicts_a_grammars_end_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="a grammar ends the text where it is complete"):
        answer(harness(None), "r", "off", **fields)
