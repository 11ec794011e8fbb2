"""From tokens to text: whole characters only, and nothing of a stop string or behind it."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Protocol


class TextCodec(Protocol):
    """What the engine needs to know of a tokenizer."""

    @property
    def token_bytes(self) -> Sequence[bytes]:
        """What each token adds to the text; a token may hold part of a character."""
        ...

    @property
    def special_ids(self) -> AbstractSet[int]:
        """Control tokens, which have no text of their own."""
        ...

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """The text of tokens at once."""
        ...


class TextStream:
    """Turns one sequence's tokens into text as they come.

    `feed` returns what can be shown: complete characters that cannot be the beginning of a stop string. Stop strings
    are found across any number of tokens; once one is found, `stopped` is set and nothing more is released. Text
    that was fed with `may_stop=False` is not searched.
    """

    def __init__(self, codec: TextCodec, stops: Sequence[str] = (), *, skip_special: bool = True) -> None:
        self._bytes = codec.token_bytes
        self._hidden: AbstractSet[int] = codec.special_ids if skip_special else frozenset()
        self._stops = tuple(stops)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""
        self.stopped = False

    def feed(self, token: int, *, may_stop: bool = True) -> str:
        """Take the next token; return the text that it releases, often none."""
        if token in self._hidden or token >= len(self._bytes):
            return ""
        return self._release(self._decoder.decode(self._bytes[token]), may_stop)

    def flush(self) -> str:
        """Return what is held back, when the sequence ends for another reason; half a character becomes U+FFFD."""
        text = self._release(self._decoder.decode(b"", final=True), may_stop=True)
        if self.stopped:
            return text
        text, self._held = text + self._held, ""
        return text

    def _release(self, new: str, may_stop: bool) -> str:
        if not self._stops or not may_stop:
            text, self._held = self._held + new, ""
            return text
        text = self._held + new
        found = [at for at in (text.find(stop) for stop in self._stops) if at >= 0]
        if found:
            self.stopped = True
            self._held = ""
            return text[: min(found)]
        keep = max(_overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a proper beginning of `stop`."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)
