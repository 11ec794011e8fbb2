"""The controller's contract: which draft, and how much of it, each request verifies in the next step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from outrider.params import Speculation
from outrider.proposers.base import Proposal


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


@dataclass(frozen=True, slots=True)
class Choice:
    """What one request verifies."""

    proposal: int = 0
    """Which of its proposals."""
    window: int = 0
    """How many of that draft's tokens; 0 decodes plainly."""
    expected: float = 0.0
    """Tokens of them that are expected to be accepted."""


PLAIN = Choice()


class Controller(Protocol):
    """Chooses windows. Used from one thread only."""

    def budgets(
        self, source: str, candidates: Sequence[Candidate], proposals: Sequence[Sequence[Proposal]]
    ) -> list[int]:
        """Most tokens to ask this proposer for, from 0 (it is not asked) to the candidate's limit.

        `proposals` are what those before it proposed for the same requests: where they promise enough, a dear one is
        not asked.
        """
        ...

    def choose(
        self, candidates: Sequence[Candidate], proposals: Sequence[Sequence[Proposal]], load: Load
    ) -> list[Choice]:
        """For each request one of its proposals, and how much of it to verify."""
        ...

    def observe(self, request: str, proposals: Sequence[Proposal], choice: Choice, emitted: Sequence[int]) -> None:
        """Learn how a request's drafts fared: they were proposed whole, `choice` was verified, `emitted` was said."""
        ...

    def observe_pass(self, load: Load, seconds: float) -> None:
        """Learn what a pass cost; here the load counts everything in it, drafts too."""
        ...

    def observe_drafting(self, source: str, requests: int, longest: int, seconds: float) -> None:
        """Learn what it cost to ask this proposer for so many requests' drafts, the longest of so many tokens."""
        ...

    def padding(self, load: Load) -> int:
        """Tokens to add to a pass because a wider one is cheaper; most of the time none."""
        ...

    def release(self, request: str) -> None:
        """Forget the request."""
        ...
