"""Prompt lookup: the longest suffix of the context that stood before, and what followed it there.

Source: Saxena, "Prompt Lookup Decoding", 2023. Unlike the usual implementation nothing is rescanned: each new
token enters an index of the n-grams that end at it, so a step costs the same at any context length.
"""

from __future__ import annotations

from collections.abc import Sequence

from outrider.errors import InvalidRequest
from outrider.proposers.base import NO_DRAFT, Context, Draft

# An n-gram is packed into one integer, so that equal keys mean equal tokens; token ids fit 32 bits.
_TOKEN_BITS = 32


class NgramIndex:
    """For every n-gram of min_match to max_match tokens, where it last stood with a token after it.

    `append` costs O(max_match); `find` costs O(max_match) and returns the longest match, most recent first.
    """

    def __init__(self, min_match: int, max_match: int) -> None:
        self._min = min_match
        self._max = max_match
        self._tokens: list[int] = []
        self._after: dict[int, int] = {}  # packed n-gram, its length above the tokens -> position after it

    def __len__(self) -> int:
        return len(self._tokens)

    def _suffixes(self) -> list[int]:
        """Keys of the suffixes of min_match to max_match tokens, shortest first."""
        tokens = self._tokens
        key = 0
        keys = []
        for length in range(1, min(self._max, len(tokens)) + 1):
            key |= tokens[-length] << _TOKEN_BITS * (length - 1)
            if length >= self._min:
                keys.append(key | length << _TOKEN_BITS * self._max)
        return keys

    def append(self, token: int) -> None:
        """Add the next token of the context."""
        position = len(self._tokens)
        for key in self._suffixes():  # these n-grams have a token after them only now
            self._after[key] = position
        self._tokens.append(token)

    def find(self) -> tuple[int, int] | None:
        """Return (position after the match, tokens matched) for the context's own end, or None."""
        for offset, key in enumerate(reversed(self._suffixes())):
            position = self._after.get(key)
            if position is not None:
                return position, min(self._max, len(self._tokens)) - offset
        return None

    def follow(self, position: int, count: int) -> list[int]:
        """The `count` tokens from `position`; past the end the copy goes on into itself, as a period does."""
        tokens = self._tokens
        end = len(tokens)
        period = end - position
        return [tokens[position + step % period] for step in range(count)]


class PromptLookup:
    """Proposes what followed the last occurrence of the context's longest matching suffix.

    Args:
        min_match: fewest tokens that must match; 1 drafts more often and is wrong more often.
        max_match: most tokens compared; among matches of this length the most recent wins.

    Raises:
        InvalidRequest: min_match is not between 1 and max_match.
    """

    name = "lookup"

    def __init__(self, min_match: int = 1, max_match: int = 8) -> None:
        if not 1 <= min_match <= max_match:
            raise InvalidRequest(f"min_match={min_match} must be at least 1 and at most max_match={max_match}")
        self._min = min_match
        self._max = max_match
        self._indexes: dict[str, NgramIndex] = {}

    def propose(self, contexts: Sequence[Context], budget: Sequence[int]) -> list[Draft]:
        """See `Proposer.propose`."""
        return [self._propose(context, most) for context, most in zip(contexts, budget, strict=True)]

    def _propose(self, context: Context, most: int) -> Draft:
        index = self._indexes.get(context.request)
        if index is None:
            index = self._indexes[context.request] = NgramIndex(self._min, self._max)
        for position in range(len(index), len(context.tokens)):
            index.append(context.tokens[position])
        found = index.find() if most > 0 else None
        if found is None:
            return NO_DRAFT
        position, matched = found
        tokens = index.follow(position, most)
        return Draft(tokens, [(matched + step) / (matched + step + 1) for step in range(len(tokens))])

    def observe(self, request: str, tokens: Sequence[int]) -> None:
        """Nothing to do: `propose` reads what is new from the context itself."""

    def release(self, context: Context) -> None:
        """See `Proposer.release`."""
        self._indexes.pop(context.request, None)
