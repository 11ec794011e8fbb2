"""Grammars: which tokens may come next. The sampler masks the others, so that every verification is exact."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from outrider.verify.distribution import Scores


class Constraint(Protocol):
    """The state of one sequence's grammar; it follows the sampler's pushes and pops."""

    def mask(self, scores: Scores) -> None:
        """Set the scores of tokens that may not come next to minus infinity, in place. At least one may."""
        ...

    def push(self, token: int) -> None:
        """The token was chosen. A token that the grammar does not allow is not chosen."""
        ...

    def pop(self) -> None:
        """Undo the last `push`."""
        ...

    def accepts(self, tokens: Sequence[int]) -> int:
        """How many of these tokens may come next, one after the other."""
        ...
