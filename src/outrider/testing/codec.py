"""A tokenizer for tests: a token is a byte, or any bytes that the test gives it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class ByteCodec:
    """Token i stands for `token_bytes[i]`; by default for the byte i."""

    def __init__(self, token_bytes: Iterable[bytes] | None = None, special_ids: Iterable[int] = ()) -> None:
        self.token_bytes = [bytes([i]) for i in range(256)] if token_bytes is None else list(token_bytes)
        self.special_ids = frozenset(special_ids)

    def encode(self, text: str) -> list[int]:
        """The UTF-8 bytes of a text; for the default codec only."""
        return list(text.encode())

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """The text of tokens at once."""
        kept = (i for i in ids if not (skip_special and i in self.special_ids))
        return b"".join(self.token_bytes[i] for i in kept).decode("utf-8", errors="replace")
