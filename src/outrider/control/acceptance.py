"""How likely a draft token is accepted, given that those before it were.

What counts is what the proposer knows (its confidence) and the position, learned over all requests, and how this
request has fared against that expectation. Everything is forgotten slowly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from outrider.proposers.base import Draft

_POSITIONS = 2
_BUCKETS = 16
_BINS = 10
_CEILING = 0.98
_FLOOR = 0.01
# What is expected of a bucket of one position comes from the bucket at all positions, that from the proposer's word,
# and how far the word is to be believed from all its drafts; each prior weighs as much as so many observations. The
# numbers were chosen on logged drafts (docs/how-it-works.md).
_POSITION_PRIOR = 16.0
_BUCKET_PRIOR = 16.0
_WORD_PRIOR = 10.0
_WORD_AT_FIRST = 0.8
_GLOBAL_FORGET = 0.9995
_WORD_FORGET = 0.999
# How far one token moves what is known of its request, in odds, and how much of that is kept.
_REQUEST_STEP = 0.15
_REQUEST_KEEP = 0.99


@dataclass(slots=True)
class _Tally:
    hits: float = 0.0
    trials: float = 0.0

    def add(self, hit: bool, weight: float) -> None:
        self.hits = self.hits * _GLOBAL_FORGET + weight * hit
        self.trials = self.trials * _GLOBAL_FORGET + weight

    def rate(self, prior: float, weight: float) -> float:
        return (self.hits + weight * prior) / (self.trials + weight)


class AcceptanceModel:
    """Calibrated acceptance probabilities for one proposer."""

    def __init__(self) -> None:
        self._buckets = [_Tally() for _ in range(_BUCKETS)]
        self._cells = [[_Tally() for _ in range(_BUCKETS)] for _ in range(_POSITIONS)]
        self._claimed = _WORD_PRIOR
        self._held = _WORD_PRIOR * _WORD_AT_FIRST
        self._fortunes: dict[str, float] = {}  # by request how much better than others it fares, as log-odds
        self._predicted = [0.0] * _BINS
        self._hits = [0] * _BINS
        self._trials = [0] * _BINS

    def probabilities(self, request: str, draft: Draft) -> list[float]:
        """For each draft token the probability that it is accepted given that those before it were."""
        fortune = self._fortunes.get(request, 0.0)
        return [_shifted(self._base(i, c), fortune) for i, c in enumerate(draft.confidence)]

    def _base(self, position: int, confidence: float) -> float:
        bucket = _bucket(confidence)
        word = min(_CEILING, confidence * self._held / self._claimed)
        everywhere = self._buckets[bucket].rate(word, _BUCKET_PRIOR)
        return self._cells[min(position, _POSITIONS - 1)][bucket].rate(everywhere, _POSITION_PRIOR)

    def _learn(self, position: int, confidence: float, hit: bool, weight: float) -> None:
        bucket = _bucket(confidence)
        self._buckets[bucket].add(hit, weight)
        self._cells[min(position, _POSITIONS - 1)][bucket].add(hit, weight)
        start = _WORD_PRIOR * _WORD_AT_FIRST
        self._claimed = (self._claimed - _WORD_PRIOR) * _WORD_FORGET + weight * confidence + _WORD_PRIOR
        self._held = (self._held - start) * _WORD_FORGET + weight * hit + start

    def observe(self, request: str, draft: Draft, emitted: Sequence[int]) -> None:
        """Learn from what was said after the draft was proposed, verified or not, up to the first difference."""
        fortune = known = self._fortunes.get(request, 0.0)
        weight = math.exp(-abs(known))  # an odd request teaches little about others
        for position, (guess, said) in enumerate(zip(draft.tokens, emitted, strict=False)):
            hit = guess == said
            confidence = draft.confidence[position]
            predicted = _shifted(self._base(position, confidence), known)
            place = int(predicted * _BINS)
            self._predicted[place] += predicted
            self._hits[place] += hit
            self._trials[place] += 1
            fortune = fortune * _REQUEST_KEEP + _REQUEST_STEP * (hit - predicted)
            self._learn(position, confidence, hit, weight)
            if not hit:
                break
        self._fortunes[request] = fortune

    def reliability(self) -> float:
        """Mean distance of predicted from observed acceptance over ten bins of the prediction, weighted by trials."""
        trials = sum(self._trials)
        bins = zip(self._predicted, self._hits, strict=True)
        return sum(abs(predicted - hits) for predicted, hits in bins) / trials if trials else 0.0

    def release(self, request: str) -> None:
        """Forget the request; what it taught about the proposer stays."""
        self._fortunes.pop(request, None)


def _bucket(confidence: float) -> int:
    """Half octaves of the odds, so that 0.9 and 0.99 are told apart and 0.5 and 0.52 are not."""
    return min(_BUCKETS - 1, int(2.0 * math.log2(1.0 / max(1.0 - confidence, 2.0**-8))))


def _shifted(probability: float, log_odds: float) -> float:
    """The probability with its odds multiplied: a request that fares well must not make a good chance a certainty."""
    probability = min(_CEILING, max(_FLOOR, probability))
    odds = math.exp(log_odds) * probability / (1.0 - probability)
    return min(_CEILING, odds / (1.0 + odds))
