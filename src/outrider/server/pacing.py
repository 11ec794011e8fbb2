"""Bursts of accepted tokens, spread over the time to the next step."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from outrider.engine import Chunk, EmittedToken

_FOLLOW = 0.3
_LONGEST = 0.25
"""Seconds that a token is held back at most, whatever steps take."""


@dataclass(frozen=True, slots=True)
class Piece:
    """What is sent in one go: a chunk, or a part of one."""

    chunk: Chunk
    text: str
    tokens: Sequence[EmittedToken]
    last: bool
    """Whether the chunk ends with it."""


async def pieces(chunks: AsyncIterator[Chunk], *, smooth: bool) -> AsyncIterator[Piece]:
    """Send chunks as they come, or token by token.

    Smoothly, a chunk of m tokens is sent in m pieces over the time that a step has taken lately. The next chunk, once
    it is there, is not kept waiting: what is left goes out at once. The last chunk is never held back.
    """
    if not smooth:
        async for chunk in chunks:
            yield Piece(chunk, chunk.text, chunk.tokens, last=True)
        return
    arrived: asyncio.Queue[Chunk | BaseException | None] = asyncio.Queue()

    async def collect() -> None:
        try:
            async for chunk in chunks:
                arrived.put_nowait(chunk)
            arrived.put_nowait(None)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            arrived.put_nowait(error)

    collecting = asyncio.create_task(collect())
    step = 0.0
    before: float | None = None
    try:
        while True:
            item = await arrived.get()
            if item is None:
                return
            if isinstance(item, BaseException):
                raise item
            now = time.monotonic()
            if before is not None:
                step += (_FOLLOW if step else 1.0) * (min(now - before, _LONGEST) - step)
            before = now
            parts = _split(item)
            for number, piece in enumerate(parts):
                yield piece
                if number < len(parts) - 1 and arrived.empty() and item.finish_reason is None:
                    await _nap(arrived, step / len(parts))
    finally:
        collecting.cancel()
        await asyncio.gather(collecting, return_exceptions=True)


def _split(chunk: Chunk) -> list[Piece]:
    """Token by token, where the chunk's text is that of its tokens (a stop string that was held back may be not)."""
    if len(chunk.tokens) < 2 or "".join(token.text for token in chunk.tokens) != chunk.text:
        return [Piece(chunk, chunk.text, chunk.tokens, last=True)]
    last = len(chunk.tokens) - 1
    return [Piece(chunk, token.text, (token,), last=number == last) for number, token in enumerate(chunk.tokens)]


async def _nap(arrived: asyncio.Queue[Chunk | BaseException | None], seconds: float) -> None:
    """Sleep, but no longer than until something arrives."""
    until = time.monotonic() + seconds
    while arrived.empty() and (left := until - time.monotonic()) > 0:
        await asyncio.sleep(min(left, 0.005))
