"""The proposer's contract: guess the next tokens, learn what was really said, forget on request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from outrider.params import Verification

if TYPE_CHECKING:
    from outrider.verify.sampler import Sampler


@dataclass(frozen=True, slots=True)
class Draft:
    """Guessed tokens for one request, most of the time none.

    `probs` is the distribution q that each token was drawn from, shape [len(tokens), vocabulary], already shaped
    by the request's sampling parameters; None says that the proposer named its token without drawing (q is a
    point mass).
    """

    tokens: Sequence[int] = ()
    confidence: Sequence[float] = ()
    """For each token the proposer's own estimate, 0 to 1, that it is accepted given that those before it were."""
    probs: NDArray[np.float32] | None = None

    def cut(self, length: int) -> Draft:
        """The first `length` tokens."""
        if len(self.tokens) <= length:
            return self
        probs = None if self.probs is None else self.probs[:length]
        return Draft(self.tokens[:length], self.confidence[:length], probs)


NO_DRAFT = Draft()


def agreement(draft: Sequence[int], said: Sequence[int]) -> int:
    """How many tokens at the start of two runs are the same."""
    same = 0
    for guess, token in zip(draft, said, strict=False):
        if guess != token:
            break
        same += 1
    return same


@dataclass(frozen=True, slots=True)
class Proposal:
    """A draft and the name of the proposer that made it."""

    source: str
    draft: Draft


@dataclass(slots=True)
class Context:
    """What a proposer may know about one request. Read it, change nothing."""

    request: str
    """Key of the state that the proposer keeps for it, until `release`."""
    tokens: Sequence[int]
    """Prompt and output so far; grows between calls and never changes before its end. Read, do not keep."""
    prompt_length: int
    prediction: Sequence[int] = ()
    """Text that the client expects in the answer."""
    tenant: str | None = ""
    """Whose request it is: what is remembered of one tenant's text is never drafted to another. None is neither
    remembered nor shown what is."""
    sampler: Sampler | None = None
    """How the request chooses its tokens, at the position after `tokens`. A proposer may push draft tokens, and must
    pop them again."""
    verification: Verification = "coupled"
    """How its drafts are verified when it is not greedy."""
    state: NDArray[np.float32] | None = None
    """The target's hidden states at the position before the last token, shape [width], where the runner gives them."""


class Proposer(Protocol):
    """Guesses next tokens for a batch of requests. Used from one thread only."""

    name: str

    def propose(self, contexts: Sequence[Context], budget: Sequence[int]) -> Sequence[Draft]:
        """Return a draft for each context, of at most as many tokens as its budget says.

        Whatever it raises costs the requests their window and nothing else.
        """
        ...

    def observe(self, request: str, tokens: Sequence[int]) -> None:
        """Learn what was emitted after a draft was verified."""
        ...

    def release(self, context: Context) -> None:
        """The request is over: learn from the whole of it what is worth it, and forget its state if there is any."""
        ...


def check_draft(draft: Draft, budget: int, vocabulary: int) -> None:
    """Refuse a draft that breaks the contract.

    Raises:
        ValueError: names the token, the length or the confidence that is wrong.
    """
    if len(draft.tokens) > budget:
        raise ValueError(f"a draft of {len(draft.tokens)} tokens for a budget of {budget}")
    if len(draft.confidence) != len(draft.tokens):
        raise ValueError(f"{len(draft.confidence)} confidences for {len(draft.tokens)} tokens")
    for token in draft.tokens:
        if not 0 <= token < vocabulary:
            raise ValueError(f"draft token {token} is outside the vocabulary of {vocabulary}")
    for confidence in draft.confidence:
        if not 0.0 <= confidence <= 1.0:  # false for NaN too
            raise ValueError(f"confidence {confidence} is not between 0 and 1")
    if draft.probs is not None:
        if draft.probs.shape != (len(draft.tokens), vocabulary):
            raise ValueError(f"q has shape {draft.probs.shape}, not ({len(draft.tokens)}, {vocabulary})")
        if not np.isfinite(draft.probs).all() or (draft.probs < 0).any():
            raise ValueError("q has a negative or non-finite probability")
        if not np.allclose(draft.probs.sum(axis=1), 1.0, atol=1e-3):
            raise ValueError("a row of q does not sum to 1")
        if (draft.probs[np.arange(len(draft.tokens)), draft.tokens] <= 0).any():
            raise ValueError("a draft token has q = 0: it cannot have been drawn from q")
