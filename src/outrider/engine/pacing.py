"""How large a prefill chunk may be while others decode: a long prompt must not stall them."""

from __future__ import annotations

from dataclasses import dataclass

_SMOOTHING = 0.2
_FORGET = 0.9
# A pass with a prompt chunk has a cost of its own that grows with the context behind the chunk; smaller chunks than
# this would pay it without getting on.
_LEAST_CHUNK = 8
# A chunk that cost nothing measurable must not make the next one unbounded: it cost this share of a decode pass.
_LEAST_SHARE = 0.02


@dataclass(slots=True)
class _Usual:
    """A usual pass of so many sequences that all decode."""

    seconds: float
    tokens: float
    """In it, drafts included."""


class ChunkPacer:
    """Learns what decoding and prefill cost in a pass, and keeps a mixed pass within `stretch` decode passes.

    Args:
        chunk_tokens: most prompt tokens in a pass when nobody is decoding.
        stretch: how many times longer a mixed pass may be than a decode pass.
    """

    def __init__(self, chunk_tokens: int, stretch: float) -> None:
        self._chunk = chunk_tokens
        self._stretch = stretch
        self._usual: dict[int, _Usual] = {}
        # of the latest mixed passes: what they had above a usual pass. The price of a token is the ratio of the sums,
        # so that the few tokens at a prompt's end, each of them dear, do not count like a chunk.
        self._seconds = 0.0
        self._tokens = 0.0

    def limit(self, decoding: int) -> int:
        """Most prompt tokens in the next pass, beside this many decoding sequences."""
        if decoding == 0:
            return self._chunk
        if not self._usual or not self._tokens:
            return min(_LEAST_CHUNK, self._chunk)
        allowed = int((self._stretch - 1.0) * self._expected(decoding).seconds / self._price)
        return min(max(allowed, _LEAST_CHUNK), self._chunk)

    def observe(self, decoding: int, prompt_tokens: int, drafted: int, seconds: float) -> None:
        """Learn from a finished pass.

        Args:
            decoding: sequences that decoded in it.
            prompt_tokens: tokens of prompts in it.
            drafted: draft tokens in it, which the model takes like those of prompts.
            seconds: what it took, the making of drafts left out.
        """
        if decoding == 0:
            return
        tokens = decoding + prompt_tokens + drafted
        if prompt_tokens == 0:
            usual = self._usual.setdefault(decoding, _Usual(seconds, tokens))
            usual.seconds += _SMOOTHING * (seconds - usual.seconds)
            usual.tokens += _SMOOTHING * (tokens - usual.tokens)
        elif self._usual:
            usual = self._expected(decoding)
            if tokens > usual.tokens:
                self._seconds = _FORGET * self._seconds + max(seconds - usual.seconds, _LEAST_SHARE * usual.seconds)
                self._tokens = _FORGET * self._tokens + tokens - usual.tokens

    @property
    def _price(self) -> float:
        """Seconds that a token adds to a decode pass."""
        return self._seconds / self._tokens if self._tokens else 0.0

    def _expected(self, decoding: int) -> _Usual:
        """The usual pass of so many sequences; one of the nearest number that was seen, and a token for each more."""
        nearest = min(self._usual, key=lambda seen: abs(seen - decoding))
        usual = self._usual[nearest]
        more = max(0, decoding - nearest)
        return _Usual(usual.seconds + more * self._price, usual.tokens + more)
