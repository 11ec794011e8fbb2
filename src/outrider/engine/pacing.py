"""How large a prefill chunk may be while others decode: a long prompt must not stall them."""

from __future__ import annotations

_SMOOTHING = 0.2
# A pass with a prompt chunk has a cost of its own that grows with the context behind the chunk; smaller chunks than
# this would pay it without getting on.
_LEAST_CHUNK = 8


class ChunkPacer:
    """Learns what decoding and prefill cost in a pass, and keeps a mixed pass within `stretch` decode passes.

    Args:
        chunk_tokens: most prompt tokens in a pass when nobody is decoding.
        stretch: how many times longer a mixed pass may be than a decode pass.
    """

    def __init__(self, chunk_tokens: int, stretch: float) -> None:
        self._chunk = chunk_tokens
        self._stretch = stretch
        self._decode: float | None = None  # seconds of a pass that only decodes
        self._token: float | None = None  # seconds that a prompt token adds to such a pass

    def limit(self, decoding: int) -> int:
        """Most prompt tokens in the next pass, beside this many decoding sequences."""
        if decoding == 0:
            return self._chunk
        if self._decode is None or self._token is None:
            return min(_LEAST_CHUNK, self._chunk)
        allowed = int((self._stretch - 1.0) * self._decode / self._token)
        return min(max(allowed, _LEAST_CHUNK), self._chunk)

    def observe(self, decoding: int, prompt_tokens: int, seconds: float) -> None:
        """Learn from a finished pass."""
        if decoding == 0:
            return
        if prompt_tokens == 0:
            self._decode = self._smooth(self._decode, seconds)
        elif self._decode is not None:
            # a chunk that cost nothing measurable must not make the next one unbounded
            added = max(seconds - self._decode, 0.02 * self._decode) / prompt_tokens
            self._token = self._smooth(self._token, added)

    @staticmethod
    def _smooth(old: float | None, new: float) -> float:
        return new if old is None else old + _SMOOTHING * (new - old)
