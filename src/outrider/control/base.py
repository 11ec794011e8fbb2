"""The controller's contract: how many draft tokens each request may have in the next step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from outrider.params import Speculation


@dataclass(frozen=True, slots=True)
class Candidate:
    """One request that could speculate in this step."""

    request: str
    mode: Speculation
    limit: int
    """Most draft tokens that `max_tokens` and the context leave room for."""


class Controller(Protocol):
    """Chooses windows. Used from one thread only."""

    def windows(self, candidates: Sequence[Candidate]) -> list[int]:
        """A window for each candidate, from 0 to its limit; 0 is plain decoding."""
        ...

    def observe(self, request: str, drafted: int, accepted: int) -> None:
        """Learn how a verified draft fared."""
        ...

    def release(self, request: str) -> None:
        """Forget the request."""
        ...
