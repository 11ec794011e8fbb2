"""The runner's contract: one forward pass over ragged runs of tokens with a paged KV cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Logits = NDArray[np.float32]
"""Shape [rows, vocabulary]."""
States = NDArray[np.float32]
"""Hidden states, shape [rows, width]."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of consecutive tokens of one sequence.

    Positions before `start` are valid in the KV cache; anything at or after it is overwritten, so a rejected
    draft is forgotten by starting the next segment earlier.
    """

    tokens: Sequence[int]
    """The run itself, at least one token."""
    start: int
    """Position of the first token in its sequence."""
    blocks: Sequence[int]
    """The sequence's block table: entry i holds positions i * block_size up to (i + 1) * block_size."""
    rows: int
    """How many trailing tokens need logits, from 0 to len(tokens)."""


@dataclass(frozen=True, slots=True)
class RunnerInfo:
    """What never changes about a loaded model."""

    vocabulary: int
    context_length: int
    """Most positions of one sequence that the model was made for."""
    block_size: int
    """Tokens in a KV block."""
    num_blocks: int
    """KV blocks that the memory budget pays for."""
    block_bytes: int
    """Memory of one block over all layers."""


class Runner(Protocol):
    """One model with its KV cache. Used from one thread only."""

    @property
    def info(self) -> RunnerInfo: ...

    @property
    def infer_seconds(self) -> float:
        """Seconds spent inside the model's own forward passes so far."""
        ...

    @property
    def states(self) -> States | None:
        """Hidden states of the rows that the last pass gave logits of, valid until the next one.

        None where the runner was not loaded to give them.
        """
        ...

    def forward(self, segments: Sequence[Segment]) -> Logits:
        """Run one pass; return the logits of every row asked for, in the order of the segments.

        The result has shape [sum of rows, vocabulary] and is valid until the next call. A batch may mix
        prefill chunks, single decodes and verification runs of any lengths.
        """
        ...

    def copy_block(self, source: int, target: int) -> None:
        """Copy one KV block over another (copy-on-write of a shared tail)."""
        ...

    def close(self) -> None:
        """Free the model and its KV cache."""
        ...


def check_segments(segments: Sequence[Segment], info: RunnerInfo) -> None:
    """Refuse a malformed batch: every runner calls this first, so that a bug upstream is not a silent overwrite.

    Raises:
        ValueError: names the segment and the number that is out of range.
    """
    if not segments:
        raise ValueError("a forward pass needs at least one segment")
    for number, segment in enumerate(segments):
        count = len(segment.tokens)
        end = segment.start + count
        if count == 0:
            raise ValueError(f"segment {number} has no tokens")
        if not 0 <= segment.rows <= count:
            raise ValueError(f"segment {number} asks for {segment.rows} rows of {count} tokens")
        if segment.start < 0 or end > info.context_length:
            raise ValueError(
                f"segment {number} covers positions {segment.start} to {end}; the context is {info.context_length}"
            )
        if end > len(segment.blocks) * info.block_size:
            raise ValueError(f"segment {number} ends at {end}, past its {len(segment.blocks)} blocks")
