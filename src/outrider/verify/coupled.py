"""Greedy and coupled verification: the draft is accepted while it equals the token that is chosen anyway.

The choice at a position is a deterministic function of the target distribution, the seed and the position (argmax at
temperature 0, an exponential race with counter-based noise above), so the text cannot depend on the draft. A point
draft d is accepted with probability p(d), as rejection sampling would; a draft drawn with the same noise with at least
(1 - TV) / (1 + TV). Source: Daliri, Musco, Suresh 2024, "Coupling without communication and drafter-invariant
speculative decoding".
"""

from __future__ import annotations

from outrider.proposers.base import Draft
from outrider.runners.base import Logits
from outrider.verify.base import Verdict, take
from outrider.verify.sampler import Sampler


def verify_coupled(logits: Logits, draft: Draft, sampler: Sampler) -> Verdict:
    """See `Verifier`. With an empty draft this is one step of plain decoding: there is no second path."""
    verdict = Verdict()
    for row in range(len(draft.tokens) + 1):
        scores = sampler.shape(logits[row])
        token = sampler.choose(scores)
        take(verdict, sampler, scores, token)
        if row == len(draft.tokens) or token != draft.tokens[row]:
            break
        verdict.accepted += 1
    return verdict
