"""The verifier's contract and what it returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from outrider.proposers.base import Draft
from outrider.runners.base import Logits
from outrider.verify.distribution import Scores, log_probabilities
from outrider.verify.sampler import Sampler


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probability of a token and of the most likely tokens beside it, most likely first."""

    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(slots=True)
class Verdict:
    """The accepted prefix of a draft plus one token more."""

    tokens: list[int] = field(default_factory=list)
    accepted: int = 0
    """How many of `tokens` are the draft's."""
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    """One for each token, or none when the request did not ask."""


class Verifier(Protocol):
    """Checks a window against the target.

    Args of the call:
        logits: the target's, shape [len(draft.tokens) + 1, vocabulary]; row j is the position after j draft tokens.
        draft: what was proposed; an empty one makes this plain decoding.
        sampler: the sequence's state; it has pushed exactly the verdict's tokens when the call returns.
    """

    def __call__(self, logits: Logits, draft: Draft, sampler: Sampler) -> Verdict: ...


def token_logprobs(scores: Scores, token: int, top: int) -> TokenLogprobs:
    """Log-probabilities out of shaped logits; of equal ones the lower token id comes first."""
    logprobs = log_probabilities(scores)
    best: Sequence[int] = []
    if top:
        threshold = np.partition(logprobs, len(logprobs) - top)[len(logprobs) - top]
        likely = np.flatnonzero(logprobs >= threshold)
        likely = likely[np.isfinite(logprobs[likely])]  # what a grammar or a minimum length forbids is no alternative
        best = likely[np.argsort(-logprobs[likely], kind="stable")][:top].tolist()
    return TokenLogprobs(float(logprobs[token]), tuple((token, float(logprobs[token])) for token in best))


def take(verdict: Verdict, sampler: Sampler, scores: Scores, token: int) -> None:
    """Append a token to the verdict, with its log-probabilities when asked for, and push it."""
    if sampler.params.logprobs is not None:
        verdict.logprobs.append(token_logprobs(scores, token, min(sampler.params.logprobs, len(scores))))
    verdict.tokens.append(token)
    sampler.push(token)
