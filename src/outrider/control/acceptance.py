"""How likely a draft token is accepted, given that those before it were.

What counts is what the proposer knows (its confidence) and the position, learned over all requests, and how this
request has fared against that expectation. Everything is forgotten slowly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from outrider.proposers.base import Draft

_POSITIONS = 4
_BUCKETS = 16
_GLOBAL_FORGET = 0.998
_REQUEST_FORGET = 0.95
# Strength of the prior in observations: the proposer's word for a bucket, the whole server's experience for a request.
_BUCKET_PRIOR = 4.0
_REQUEST_PRIOR = 2.0
_CEILING = 0.98


@dataclass(slots=True)
class _Tally:
    hits: float
    trials: float

    def add(self, hit: bool, forget: float) -> None:
        self.hits = self.hits * forget + hit
        self.trials = self.trials * forget + 1.0


@dataclass(slots=True)
class _Fortune:
    """What a request's drafts were expected to win, and what they won."""

    expected: float = 0.0
    won: float = 0.0

    def factor(self) -> float:
        return (self.won + _REQUEST_PRIOR) / (self.expected + _REQUEST_PRIOR)


class AcceptanceModel:
    """Calibrated acceptance probabilities for one proposer."""

    def __init__(self) -> None:
        self._tallies: dict[tuple[int, int], _Tally] = {}
        self._fortunes: dict[str, _Fortune] = {}

    def probabilities(self, request: str, draft: Draft) -> list[float]:
        """For each draft token the probability that it is accepted given that those before it were."""
        factor = self._fortunes[request].factor() if request in self._fortunes else 1.0
        return [min(_CEILING, self._base(i, c) * factor) for i, c in enumerate(draft.confidence)]

    def _base(self, position: int, confidence: float) -> float:
        tally = self._tally(position, confidence)
        return tally.hits / tally.trials

    def _tally(self, position: int, confidence: float) -> _Tally:
        key = (min(position, _POSITIONS - 1), _bucket(confidence))
        tally = self._tallies.get(key)
        if tally is None:
            # a proposer's own word is a start; half of it, since proposers are optimists
            tally = self._tallies[key] = _Tally(0.5 * confidence * _BUCKET_PRIOR, _BUCKET_PRIOR)
        return tally

    def observe(self, request: str, draft: Draft, emitted: Sequence[int]) -> None:
        """Learn from what was said after the draft was proposed, verified or not, up to the first difference."""
        fortune = self._fortunes.setdefault(request, _Fortune())
        for position, (guess, said) in enumerate(zip(draft.tokens, emitted, strict=False)):
            hit = guess == said
            confidence = draft.confidence[position]
            fortune.expected = fortune.expected * _REQUEST_FORGET + self._base(position, confidence)
            fortune.won = fortune.won * _REQUEST_FORGET + hit
            self._tally(position, confidence).add(hit, _GLOBAL_FORGET)
            if not hit:
                return

    def release(self, request: str) -> None:
        """Forget the request; what it taught about the proposer stays."""
        self._fortunes.pop(request, None)


def _bucket(confidence: float) -> int:
    """Half octaves of the odds, so that 0.9 and 0.99 are told apart and 0.5 and 0.52 are not."""
    return min(_BUCKETS - 1, int(2.0 * math.log2(1.0 / max(1.0 - confidence, 2.0**-8))))
