"""The controller's contract: how many draft tokens each request may have in the next step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from outrider.params import Speculation
from outrider.proposers.base import Draft


@dataclass(frozen=True, slots=True)
class Candidate:
    """One request that could speculate in this step."""

    request: str
    mode: Speculation
    limit: int
    """Most draft tokens that `max_tokens` and the context leave room for."""
    context: int
    """Tokens of prompt and output so far."""


@dataclass(frozen=True, slots=True)
class Load:
    """What is in the pass whatever the windows are."""

    width: int
    """Tokens in the pass: one for each decoding sequence, and the prompt chunks."""
    attention: int
    """Sum over those tokens of the context that each one attends to."""
    sequences: int
    """Sequences in the pass; as many as tokens when all of them just decode."""


class Controller(Protocol):
    """Chooses windows. Used from one thread only."""

    def budgets(self, candidates: Sequence[Candidate]) -> list[int]:
        """Most tokens to ask the proposer for, from 0 (it is not asked) to the candidate's limit."""
        ...

    def windows(self, candidates: Sequence[Candidate], drafts: Sequence[Draft], load: Load) -> list[int]:
        """How much of each draft to verify, from 0 to its length."""
        ...

    def observe(self, request: str, draft: Draft, window: int, emitted: Sequence[int]) -> None:
        """Learn how a draft fared: it was proposed whole, `window` of it was verified, `emitted` was said."""
        ...

    def observe_pass(self, load: Load, seconds: float) -> None:
        """Learn what a pass cost; here the load counts everything in it, drafts too."""
        ...

    def release(self, request: str) -> None:
        """Forget the request."""
        ...
