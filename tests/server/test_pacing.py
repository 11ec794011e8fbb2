"""Bursts: spread, never lost, never late at the end."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from itertools import pairwise
from statistics import fmean, pstdev

import pytest

from outrider.engine import Chunk, EmittedToken, FinishReason
from outrider.server.pacing import Pace, Piece, pieces


def chunk(words: list[str], finish: FinishReason | None = None, text: str | None = None) -> Chunk:
    tokens = tuple(EmittedToken(i, word, accepted=i > 0) for i, word in enumerate(words))
    return Chunk("r", 0, tokens, "".join(words) if text is None else text, finish)


def run(chunks: list[tuple[float, Chunk]], *, smooth: bool) -> list[tuple[float, Piece]]:
    async def main() -> list[tuple[float, Piece]]:
        loop = asyncio.get_running_loop()
        started = loop.time()

        async def source() -> AsyncIterator[Chunk]:
            for wait, each in chunks:
                await asyncio.sleep(wait)
                yield each

        return [(loop.time() - started, piece) async for piece in pieces(source(), smooth=smooth)]

    return asyncio.run(main())


STEPS = [(0.0, chunk(["a"])), (0.05, chunk(["b"])), (0.05, chunk(["c", "d", "e", "f"])), (0.05, chunk(["g"], "stop"))]


def test_the_text_is_whole_and_in_order_either_way() -> None:
    for smooth in (True, False):
        got = run(STEPS, smooth=smooth)
        assert "".join(piece.text for _, piece in got) == "abcdefg"
        assert [token.text for _, piece in got for token in piece.tokens] == list("abcdefg")
        assert sum(piece.last for _, piece in got) == len(STEPS)


def test_a_burst_is_one_piece_or_one_for_each_token() -> None:
    assert [piece.text for _, piece in run(STEPS, smooth=False)] == ["a", "b", "cdef", "g"]
    assert [piece.text for _, piece in run(STEPS, smooth=True)] == list("abcdefg")


def test_smooth_pieces_come_apart_and_before_the_next_chunk_waits() -> None:
    times = {piece.text: when for when, piece in run(STEPS, smooth=True)}
    assert times["c"] < times["d"] < times["e"] < times["f"] <= times["g"]
    assert times["f"] - times["c"] > 0.01  # spread, not sent at once


def test_the_last_chunk_is_not_held_back() -> None:
    got = run([(0.0, chunk(["a"])), (0.2, chunk(["b", "c", "d", "e"], "stop"))], smooth=True)
    assert got[-1][0] - got[1][0] < 0.05


def test_a_text_that_is_not_its_tokens_stays_whole() -> None:
    assert [piece.text for _, piece in run([(0.0, chunk(["a", "b"], text="(ab"))], smooth=True)] == ["(ab"]


def test_an_error_of_the_source_comes_through() -> None:
    seen = []

    async def main() -> None:
        async def source() -> AsyncIterator[Chunk]:
            yield chunk(["a"])
            raise ValueError("broken")

        async for piece in pieces(source(), smooth=True):
            seen.append(piece.text)  # noqa: PERF401 (what came before the error counts)

    with pytest.raises(ValueError, match="broken"):
        asyncio.run(main())
    assert seen == ["a"]


def test_gaps_even_out_and_no_token_is_long_late() -> None:
    """A step of 40 ms gives one token, two now and then, five rarely: as drafts do."""
    pace, now = Pace(), 0.0
    waiting: list[float] = []
    sent: list[float] = []
    burst: list[float] = []
    late = 0.0
    rng = random.Random(5)
    for _ in range(400):
        count = rng.choices((1, 2, 5), (70, 25, 5))[0]
        pace.arrive(now, count)
        waiting += [now] * count
        burst += [now] * count
        following = now + 0.040
        while waiting and (due := max(pace.due(waiting[0]), sent[-1] if sent else 0.0)) < following:
            late = max(late, due - waiting.pop(0))
            sent.append(due)
            pace.sent(due)
        now = following

    def variation(moments: list[float]) -> float:
        gaps = [b - a for a, b in pairwise(moments)]
        return pstdev(gaps) / fmean(gaps)

    assert variation(sent[20:]) < 0.5 * variation(burst[20:])
    assert late <= 0.0801
