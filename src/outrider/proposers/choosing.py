"""Choosing draft tokens out of a draft's logits, one by one, for draft models and draft heads alike.

Greedy requests get the draft's most likely tokens. Sampled ones under coupled verification get the token that the
request's own noise picks from the draft's distribution, which the target picks too wherever the two agree (Daliri et
al. 2024); under rejection and block verification tokens are drawn, and their distributions come with them.
In each case the draft's logits go through the request's penalties and cuts first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from outrider.proposers.base import Context, Draft
from outrider.proposers.vocabulary import VocabularyMap
from outrider.verify.noise import Purpose
from outrider.verify.sampler import Sampler

GoesOn = Callable[[str, str, Sequence[float], int], bool]
"""Whether one more token pays: asked with proposer, request, confidences so far, and requests that share the pass."""


@dataclass(slots=True)
class Drafting:
    """One request's draft in the making."""

    context: Context
    budget: int
    """Tokens at most; 0 when nothing more may come."""
    tokens: list[int] = field(default_factory=list)
    confidence: list[float] = field(default_factory=list)
    rows: list[NDArray[np.float32]] = field(default_factory=list)

    def draft(self) -> Draft:
        """What was drafted."""
        probs = np.stack(self.rows) if self.rows else None
        return Draft(self.tokens, self.confidence, probs)

    def choose(self, row: NDArray[np.float32], vocabulary: VocabularyMap) -> None:
        """Take the next token out of the draft's logits, shape [draft vocabulary]."""
        sampler = self.context.sampler
        if sampler is None or sampler.plain:
            token, sure = vocabulary.best(row)
        else:
            scores = sampler.shape(vocabulary.to_target(row))
            if not np.isfinite(scores.max()):  # a grammar is complete: nothing may come
                self.budget = len(self.tokens)
                return
            token, sure = self._sampled(sampler, scores)
        if sampler is not None:
            sampler.push(token)
        self.confidence.append(sure)
        self.tokens.append(token)

    def _sampled(self, sampler: Sampler, scores: NDArray[np.float32]) -> tuple[int, float]:
        if sampler.params.greedy:
            token = sampler.choose(scores)
            return token, softmax_at(scores, token)
        distribution = sampler.distribution(scores)
        if self.context.verification == "coupled":
            token = sampler.choose(scores)
            return token, min(1.0, distribution.weight(token) / distribution.total)
        q = distribution.dense(len(scores))
        start = sampler.position - len(self.tokens)
        reached = np.cumsum(q)
        u = sampler.uniform(Purpose.DRAFT, start) * reached[-1]
        token = min(int(np.searchsorted(reached, u, side="right")), int(np.flatnonzero(q)[-1]))
        self.rows.append(q.astype(np.float32))
        return token, float(q[token])

    def wants_more(self, name: str, goes_on: GoesOn | None, batch: int) -> bool:
        """Whether another token is within the budget and pays."""
        if len(self.tokens) >= self.budget:
            return False
        return goes_on is None or goes_on(name, self.context.request, self.confidence, batch)

    def undo(self) -> None:
        """Take the draft out of the request's history again."""
        if self.context.sampler is not None:
            for token in reversed(self.tokens):
                self.context.sampler.pop(token)


def softmax_at(scores: NDArray[np.float32], token: int) -> float:
    """Probability of one token under these scores."""
    return min(1.0, 1.0 / float(np.exp(scores - scores[token]).sum(dtype=np.float64)))
