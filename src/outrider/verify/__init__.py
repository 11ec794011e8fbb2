"""Verification: sampling parameters to target distribution; greedy, coupled, rejection and block verification."""

from outrider.params import Verification
from outrider.proposers.base import Draft
from outrider.runners.base import Logits
from outrider.verify.base import TokenLogprobs, Verdict, Verifier, token_logprobs
from outrider.verify.block import verify_block
from outrider.verify.constraint import Constraint
from outrider.verify.coupled import verify_coupled
from outrider.verify.rejection import verify_rejection
from outrider.verify.sampler import Sampler

__all__ = ["Constraint", "Sampler", "TokenLogprobs", "Verdict", "Verifier", "token_logprobs", "verify"]

_WAYS: dict[Verification, Verifier] = {
    "coupled": verify_coupled,
    "rejection": verify_rejection,
    "block": verify_block,
}


def verify(logits: Logits, draft: Draft, sampler: Sampler, way: Verification = "coupled") -> Verdict:
    """Check a window: greedy at temperature 0 whatever the way, else by the way asked for. See `Verifier`."""
    if sampler.params.greedy:
        return verify_coupled(logits, draft, sampler)
    return _WAYS[way](logits, draft, sampler)
