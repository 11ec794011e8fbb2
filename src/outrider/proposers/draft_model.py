"""Classic speculative decoding: a smaller model of the same vocabulary drafts, token by token.

It has a KV cache of its own, which follows the target's text lazily: what the target accepted is there already, what it
rejected is overwritten, and a request that was not drafted for a while is caught up in one chunk.

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

from outrider.proposers.base import NO_DRAFT, Context, Draft
from outrider.proposers.vocabulary import VocabularyMap
from outrider.runners.base import Runner, Segment
from outrider.verify.noise import Purpose
from outrider.verify.sampler import Sampler

GoesOn = Callable[[str, str, Sequence[float], int], bool]
"""Whether one more token pays: asked with proposer, request, confidences so far, and requests that share the pass."""
CATCH_UP = 256
"""Most tokens of known text that go through the draft in one step, over all requests."""


@dataclass(slots=True)
class _Followed:
    """One request's text in the draft's KV cache."""

    fed: list[int] = field(default_factory=list)
    """Target's ids of the tokens that went through the draft, from position 0; the last ones may have been rejected."""
    valid: int = 0
    """How many of them are known to be the text."""
    blocks: list[int] = field(default_factory=list)

    def agree(self, tokens: Sequence[int]) -> None:
        """Compare what was fed with the text, and forget what was rejected. One token is always left to feed."""
        end = min(len(self.fed), len(tokens) - 1)
        while self.valid < end and self.fed[self.valid] == tokens[self.valid]:
            self.valid += 1
        del self.fed[self.valid :]


@dataclass(slots=True)
class _Drafting:
    """One request in the drafting loop of a step."""

    context: Context
    followed: _Followed
    budget: int
    tokens: list[int] = field(default_factory=list)
    confidence: list[float] = field(default_factory=list)
    rows: list[NDArray[np.float32]] = field(default_factory=list)

    def draft(self) -> Draft:
        probs = np.stack(self.rows) if self.rows else None
        return Draft(self.tokens, self.confidence, probs)


class DraftModel:
    """Proposes what a smaller model says.

    Args:
        runner: the draft; its KV blocks are this proposer's alone.
        vocabulary: how its tokens correspond to the target's.
        goes_on: asked after each token whether another pays; None drafts as far as the budget goes.
    """

    name = "draft"
    patience = 2.0
    """Seconds that a call may take: it may have to read a prompt."""

    def __init__(self, runner: Runner, vocabulary: VocabularyMap, goes_on: GoesOn | None = None) -> None:
        self.runner = runner
        self._vocabulary = vocabulary
        self._goes_on = goes_on
        self._free = list(range(runner.info.num_blocks - 1, -1, -1))
        self._followed: dict[str, _Followed] = {}

    @property
    def infer_seconds(self) -> float:
        """Seconds spent inside the draft's own forward passes so far."""
        return self.runner.infer_seconds

    @property
    def used_blocks(self) -> int:
        """KV blocks that open requests hold."""
        return self.runner.info.num_blocks - len(self._free)

    # --- one step --------------------------------------------------------------------------------------------

    def propose(self, contexts: Sequence[Context], budget: Sequence[int]) -> list[Draft]:
        """See `Proposer.propose`."""
        drafting = {}
        segments = []
        room = CATCH_UP
        for number, (context, most) in enumerate(zip(contexts, budget, strict=True)):
            followed = self._followed.setdefault(context.request, _Followed())
            followed.agree(context.tokens)
            missing = len(context.tokens) - followed.valid
            most = min(most, self.runner.info.context_length - len(context.tokens))
            count = min(missing, room)
            if most <= 0 or count <= 0 or not self._reserve(followed, followed.valid + count):
                continue
            room -= count
            segments.append(self._segment(followed, context.tokens[followed.valid : followed.valid + count]))
            if count == missing:
                drafting[number] = _Drafting(context, followed, most)
            else:  # the rest in the next steps; a row is asked for and not used
                followed.valid = len(followed.fed)
                drafting[number] = _Drafting(context, followed, 0)
        try:
            self._draft(drafting, segments)
        finally:
            for each in drafting.values():
                if each.context.sampler is not None:
                    for token in reversed(each.tokens):
                        each.context.sampler.pop(token)
        return [drafting[i].draft() if i in drafting else NO_DRAFT for i in range(len(contexts))]

    def _draft(self, drafting: dict[int, _Drafting], segments: list[Segment]) -> None:
        going = list(drafting.values())
        while segments:
            logits = self.runner.forward(segments)
            for row, each in zip(logits, going, strict=True):
                if each.budget:
                    self._choose(each, row)
            going = [each for each in going if self._wants_more(each, len(going))]
            segments = [self._segment(each.followed, each.tokens[-1:]) for each in going]

    def _wants_more(self, each: _Drafting, batch: int) -> bool:
        if len(each.tokens) >= each.budget:
            return False
        asked = self._goes_on
        if asked is not None and not asked(self.name, each.context.request, each.confidence, batch):
            return False
        return self._reserve(each.followed, len(each.followed.fed) + 1)

    def _choose(self, each: _Drafting, row: NDArray[np.float32]) -> None:
        """Take a draft token out of the draft's logits."""
        sampler = each.context.sampler
        scores = self._vocabulary.to_target(row)
        if sampler is None:
            token = int(scores.argmax())
            each.confidence.append(_softmax_at(scores, token))
        else:
            scores = sampler.shape(scores)
            if not np.isfinite(scores.max()):  # a grammar is complete: nothing may come
                each.budget = len(each.tokens)
                return
            token, sure = self._sampled(each, sampler, scores)
            each.confidence.append(sure)
            sampler.push(token)
        each.tokens.append(token)

    @staticmethod
    def _sampled(each: _Drafting, sampler: Sampler, scores: NDArray[np.float32]) -> tuple[int, float]:
        if sampler.params.greedy:
            token = sampler.choose(scores)
            return token, _softmax_at(scores, token)
        distribution = sampler.distribution(scores)
        if each.context.verification == "coupled":
            token = sampler.choose(scores)
            return token, min(1.0, distribution.weight(token) / distribution.total)
        q = distribution.dense(len(scores))
        start = sampler.position - len(each.tokens)
        reached = np.cumsum(q)
        u = sampler.uniform(Purpose.DRAFT, start) * reached[-1]
        token = min(int(np.searchsorted(reached, u, side="right")), int(np.flatnonzero(q)[-1]))
        each.rows.append(q.astype(np.float32))
        return token, float(q[token])

    # --- the draft's KV cache --------------------------------------------------------------------------------

    def _segment(self, followed: _Followed, tokens: Sequence[int]) -> Segment:
        start = len(followed.fed)
        followed.fed.extend(tokens)
        return Segment(self._vocabulary.to_draft(tokens), start, followed.blocks, 1)

    def _reserve(self, followed: _Followed, length: int) -> bool:
        """Get blocks for so many tokens; false where the cache is full, and nothing is taken then."""
        missing = -(-length // self.runner.info.block_size) - len(followed.blocks)
        if missing > len(self._free):
            return False
        followed.blocks.extend(self._free.pop() for _ in range(missing))
        return True

    def observe(self, request: str, tokens: Sequence[int]) -> None:
        """Nothing to do: `propose` compares the text itself with what it fed."""

    def release(self, context: Context) -> None:
        """Free the request's blocks."""
        followed = self._followed.pop(context.request, None)
        if followed is not None:
            self._free.extend(followed.blocks)


def _softmax_at(scores: NDArray[np.float32], token: int) -> float:
    return min(1.0, 1.0 / float(np.exp(scores - scores[token]).sum(dtype=np.float64)))
