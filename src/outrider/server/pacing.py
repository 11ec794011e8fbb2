"""Bursts of accepted tokens, spread over the time that steps take."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from outrider.engine import Chunk, EmittedToken

_FOLLOW = 0.2
_HELD = 2.0
"""Steps that a token is held back at most."""
_LONGEST = 0.25
"""Seconds that it is held back at most, whatever steps take."""


class Pace:
    """When tokens that come in bursts are due: as far apart as they come on the whole, none later than two steps."""

    def __init__(self) -> None:
        self._step = 0.0
        self._tokens = 1.0
        self._before: float | None = None
        self._sent = -math.inf

    def arrive(self, now: float, tokens: int) -> None:
        """Learn that a step's tokens came."""
        if self._before is not None:
            follow = _FOLLOW if self._step else 1.0
            self._step += follow * (min(now - self._before, _LONGEST) - self._step)
            self._tokens += _FOLLOW * (max(1, tokens) - self._tokens)
        self._before = now

    def due(self, came: float) -> float:
        """When the next token is to be sent, which came at this time."""
        evenly = max(self._sent + self._step / self._tokens, came)
        return min(evenly, came + min(_HELD * self._step, _LONGEST))

    def sent(self, now: float) -> None:
        """Learn that a token was sent."""
        self._sent = now


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

    Smoothly, tokens are sent as far apart as they come on the whole, so that a burst makes up for steps of a single
    token after it; none is held back for longer than two steps take, and nothing is once the answer is complete.
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
    pace = Pace()
    waiting: deque[tuple[Piece, float]] = deque()
    try:
        while True:
            item: Chunk | BaseException | None = None
            complete = False
            while not complete and (not waiting or not arrived.empty()):
                item = await arrived.get()
                complete = not isinstance(item, Chunk)
                if isinstance(item, Chunk):
                    now = time.monotonic()
                    pace.arrive(now, len(item.tokens))
                    waiting.extend((piece, now) for piece in _split(item))
                    complete = item.finish_reason is not None
            if not complete and (left := pace.due(waiting[0][1]) - time.monotonic()) > 0:
                await _nap(arrived, left)
                continue
            while waiting:
                yield waiting.popleft()[0]
                pace.sent(time.monotonic())
                if not complete:
                    break
            if isinstance(item, BaseException):
                raise item
            if complete and item is None:
                return
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
