"""Modified rejection sampling, token by token.

Source: Leviathan, Kalman, Matias 2023, algorithm 1; Chen et al. 2023. p is the target, q the draft: x is accepted with
probability min(1, p(x) / q(x)); else a token is drawn from the normalised positive part of p - q.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from outrider.proposers.base import Draft
from outrider.runners.base import Logits
from outrider.verify.base import Verdict, take
from outrider.verify.distribution import Distribution, draw
from outrider.verify.noise import Purpose
from outrider.verify.sampler import Sampler


def residual(p: Distribution, draft: Draft, row: int, scale: float = 1.0) -> NDArray[np.float64]:
    """max(scale * p - q, 0) over the tokens of p, where q is row `row` of the draft; not normalised.

    Shape: that of `p.weights`. Tokens outside p have p = 0 and so no residual.
    """
    rest = p.weights.astype(np.float64) * (scale / p.total)
    if draft.probs is None:
        rest[(np.arange(len(rest)) if p.ids is None else p.ids) == draft.tokens[row]] = 0.0
        return rest
    q = draft.probs[row]
    rest -= q if p.ids is None else q[p.ids]
    return np.maximum(rest, 0.0, out=rest)


def draw_token(p: Distribution, weights: NDArray[np.floating], sampler: Sampler, window: int) -> int:
    """Draw a token of p by the given weights; by p itself where they vanish (p equals q within rounding)."""
    u = sampler.uniform(Purpose.RESIDUAL, window)
    return p.token(draw(weights if weights.any() else p.weights, u))


def verify_rejection(logits: Logits, draft: Draft, sampler: Sampler) -> Verdict:
    """See `Verifier`; the request must not be greedy."""
    verdict = Verdict()
    window = sampler.position
    for row, x in enumerate(draft.tokens):
        scores = sampler.shape(logits[row])
        p = sampler.distribution(scores)
        q_x = 1.0 if draft.probs is None else float(draft.probs[row, x])
        if sampler.uniform(Purpose.ACCEPT, window) * q_x < p.weight(x) / p.total:
            take(verdict, sampler, scores, x)
            verdict.accepted += 1
            continue
        token = draw_token(p, residual(p, draft, row), sampler, window)
        take(verdict, sampler, scores, token)
        return verdict
    scores = sampler.shape(logits[len(draft.tokens)])
    p = sampler.distribution(scores)
    take(verdict, sampler, scores, draw_token(p, p.weights, sampler, window))
    return verdict
