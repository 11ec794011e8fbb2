"""A tiny deterministic model whose KV cache is real: what is wrong with the blocks shows in its logits."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import numpy as np

from outrider.runners import Logits, RunnerInfo, Segment, States, check_segments

Script = Callable[[Sequence[int]], np.ndarray[tuple[int], np.dtype[np.float32]]]
"""Logits of the next token after these, shape [vocabulary]; must be a pure function."""


def hashed_logits(vocabulary: int, order: int | None = None, sharpness: float = 3.0, seed: int = 0) -> Script:
    """Random logits that depend on the last `order` tokens, or on all of them where order is None."""

    def script(tokens: Sequence[int]) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
        seen = tokens if order is None else tokens[-order:]
        digest = hashlib.blake2b(np.array([seed, *seen], np.int64).tobytes(), digest_size=8).digest()
        rng = np.random.default_rng(int.from_bytes(digest, "little"))
        return rng.normal(0.0, sharpness, vocabulary).astype(np.float32)

    return script


class ScriptedRunner:
    """Keeps the tokens themselves as its KV cache and asks a script for logits.

    Every position is read back through the block table, so a wrong table, a block that was overwritten, or a rejected
    token that stayed changes the output. Reading a position that was never written raises.

    Args:
        script: next-token logits; by default hashed from the last two tokens.
        vocabulary: number of tokens.
        context_length: most positions of a sequence.
        num_blocks, block_size: size of the KV cache.
        states: hidden state after these tokens, shape [width]; None gives none.
    """

    def __init__(
        self,
        script: Script | None = None,
        *,
        vocabulary: int = 256,
        context_length: int = 256,
        num_blocks: int = 64,
        block_size: int = 4,
        states: Script | None = None,
    ) -> None:
        self.info = RunnerInfo(vocabulary, context_length, block_size, num_blocks, block_bytes=8 * block_size)
        self._script = script or hashed_logits(vocabulary, order=2)
        self._cache = np.full((num_blocks, block_size), -1, np.int64)
        self.widths: list[int] = []
        """Tokens in each pass so far."""
        self.batches: list[list[Segment]] = []
        """The segments of each pass so far."""
        self.infer_seconds = 0.0
        self._state_of = states
        self.states: States | None = None
        self.closed = False

    def forward(self, segments: Sequence[Segment]) -> Logits:
        """See `Runner.forward`."""
        check_segments(segments, self.info)
        self.widths.append(sum(len(segment.tokens) for segment in segments))
        self.batches.append(list(segments))
        size = self.info.block_size
        for segment in segments:
            for offset, token in enumerate(segment.tokens):
                position = segment.start + offset
                self._cache[segment.blocks[position // size], position % size] = token
        seen = [tokens for segment in segments for tokens in self._seen(segment)]
        rows = [self._script(tokens) for tokens in seen]
        if self._state_of is not None:
            self.states = np.stack([self._state_of(tokens) for tokens in seen]) if seen else None
        return np.stack(rows) if rows else np.empty((0, self.info.vocabulary), np.float32)

    def _seen(self, segment: Segment) -> list[list[int]]:
        """The tokens up to and with each row that is asked for, as the KV cache has them."""
        end = segment.start + len(segment.tokens)
        blocks = self._cache[list(segment.blocks)].reshape(-1)
        seen = blocks[:end].tolist()
        if -1 in seen:
            raise RuntimeError(f"position {seen.index(-1)} was never computed and is read at {end}")
        return [seen[: end - segment.rows + row + 1] for row in range(segment.rows)]

    def copy_block(self, source: int, target: int) -> None:
        """See `Runner.copy_block`."""
        self._cache[target] = self._cache[source]

    def close(self) -> None:
        """See `Runner.close`."""
        self.closed = True
