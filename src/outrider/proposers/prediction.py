"""Predicted outputs: the client says what it expects, as in an edit of a file, and most of it comes true.

A pointer walks the prediction along with the answer. Where the answer departs from it, the pointer is set again to the
place whose text the answer's end now matches best; of equals, to the one nearest to where it would be now.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

from outrider.proposers.base import NO_DRAFT, Context, Draft

_PLACES = 32
_DEEPEST = 32


@dataclass(slots=True)
class _Alignment:
    """How far one answer has come along its prediction."""

    expected: Sequence[int]
    read: int
    """Tokens of the context that were compared."""
    pointer: int = 0
    """Where in the prediction the answer stands, by the best guess."""
    run: int = 1
    """Tokens that agreed since the last departure; 0 where the answer is elsewhere."""
    places: dict[int, list[int]] = field(default_factory=dict)
    """Positions after each token of the prediction."""

    def __post_init__(self) -> None:
        for position, token in enumerate(self.expected):
            self.places.setdefault(token, []).append(position + 1)

    def follow(self, tokens: Sequence[int]) -> None:
        """Read what the answer says since the last call."""
        for position in range(self.read, len(tokens)):
            agrees = self.pointer < len(self.expected) and self.expected[self.pointer] == tokens[position]
            self.pointer += 1  # a departure most often changes a token for another
            self.run = self.run + 1 if agrees else 0
            if not agrees:
                self._align(tokens, position)
        self.read = len(tokens)

    def _align(self, tokens: Sequence[int], last: int) -> None:
        """Look for the end of the text, which is now at `last`, in the prediction."""
        places = self.places.get(tokens[last])
        if places is None:
            return
        middle = bisect_left(places, self.pointer)
        near = places[max(0, middle - _PLACES // 2) : middle + _PLACES // 2]
        best = max(near, key=lambda place: (self._matched(tokens, last, place), -abs(place - self.pointer)))
        self.pointer, self.run = best, self._matched(tokens, last, best)

    def _matched(self, tokens: Sequence[int], last: int, place: int) -> int:
        limit = min(_DEEPEST, place, last + 1)
        for back in range(limit):
            if self.expected[place - 1 - back] != tokens[last - back]:
                return back
        return limit


class Prediction:
    """Proposes what the client's prediction says next."""

    name = "prediction"

    def __init__(self) -> None:
        self._alignments: dict[str, _Alignment] = {}

    def propose(self, contexts: Sequence[Context], budget: Sequence[int]) -> list[Draft]:
        """See `Proposer.propose`."""
        return [self._propose(context, most) for context, most in zip(contexts, budget, strict=True)]

    def _propose(self, context: Context, most: int) -> Draft:
        if not context.prediction:
            return NO_DRAFT
        alignment = self._alignments.get(context.request)
        if alignment is None:
            alignment = _Alignment(context.prediction, context.prompt_length)
            self._alignments[context.request] = alignment
        alignment.follow(context.tokens)
        tokens = list(alignment.expected[alignment.pointer : alignment.pointer + most])
        run = alignment.run
        # with no run at all it stands where one token was changed for another, or is lost
        return Draft(tokens, [(run + step + 0.5) / (run + step + 1.5) for step in range(len(tokens))])

    def observe(self, request: str, tokens: Sequence[int]) -> None:
        """Nothing to do: `propose` reads what is new from the context itself."""

    def release(self, context: Context) -> None:
        """See `Proposer.release`."""
        self._alignments.pop(context.request, None)
