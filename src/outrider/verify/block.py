"""Block verification: the window is judged as one, and at least as many tokens are accepted as one by one.

Source: Sun et al. 2024, "Block verification accelerates speculative decoding", algorithm 2. p is the target, q the
draft. The running ratio r_i = min(1, r_(i-1) * p(x_i) / q(x_i)) may recover after an unlikely token; the prefix of i
tokens is kept with probability h_i, and what follows it comes from the positive part of r_i * p - q.
"""

from __future__ import annotations

from outrider.proposers.base import Draft
from outrider.runners.base import Logits
from outrider.verify.base import Verdict, take
from outrider.verify.distribution import Scores
from outrider.verify.noise import Purpose
from outrider.verify.rejection import draw_token, residual
from outrider.verify.sampler import Sampler


def verify_block(logits: Logits, draft: Draft, sampler: Sampler) -> Verdict:
    """See `Verifier`; the request must not be greedy."""
    window = sampler.position
    length = len(draft.tokens)
    shaped = _shape_window(logits, draft, sampler)
    targets = [sampler.distribution(scores) for scores in shaped]
    ratio = kept_ratio = 1.0
    kept = 0
    for i, x in enumerate(draft.tokens, start=1):
        p = targets[i - 1]
        q_x = 1.0 if draft.probs is None else float(draft.probs[i - 1, x])
        ratio = min(1.0, ratio * p.weight(x) / p.total / q_x)
        if i == length or ratio == 1.0:
            h = ratio
        else:
            rest = float(residual(targets[i], draft, i, ratio).sum())
            h = rest / (rest + 1.0 - ratio)
        if sampler.uniform(Purpose.ACCEPT, window, ahead=i - 1) < h:
            kept, kept_ratio = i, ratio
    verdict = Verdict(accepted=kept)
    for row in range(kept):
        take(verdict, sampler, shaped[row], draft.tokens[row])
    p = targets[kept]
    weights = p.weights if kept == length else residual(p, draft, kept, kept_ratio)
    take(verdict, sampler, shaped[kept], draw_token(p, weights, sampler, window))
    return verdict


def _shape_window(logits: Logits, draft: Draft, sampler: Sampler) -> list[Scores]:
    """Shaped logits after each prefix of the draft, the empty one first; the sampler is left as it was."""
    shaped = [sampler.shape(logits[0])]
    for row, x in enumerate(draft.tokens, start=1):
        sampler.push(x)
        shaped.append(sampler.shape(logits[row]))
    for x in reversed(draft.tokens):
        sampler.pop(x)
    return shaped
