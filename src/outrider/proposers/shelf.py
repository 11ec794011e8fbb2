"""Token history in which the last occurrences of the text at hand are found in constant time.

Runs of tokens stand in a ring. For each of a few lengths n the n-grams are chained by hash, newest first: a head table
names the newest n-gram of a hash, and each position names the one before it. So a token costs the same few array writes
at any size, the oldest text falls out of the ring by itself, and nothing has to be deleted: an entry that points to
overwritten text no longer matches it.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

LEVELS = (2, 4, 8, 16, 32)
"""Lengths of the n-grams that are indexed; the longest that matches decides."""
BYTES_PER_TOKEN = 4 + 8 * len(LEVELS)
SMALLEST = 1024
"""Tokens of the smallest ring."""
DEEPEST = 64
"""Most tokens that are compared backwards."""

_BREAK = -1
_BASE = 0x9E3779B1
_MASK = 0xFFFFFFFF
_LEAVING = tuple(pow(_BASE, n, _MASK + 1) for n in LEVELS)


class Trail:
    """Rolling hashes of the last n tokens of a growing text, for each level."""

    __slots__ = ("hashes", "length")

    def __init__(self) -> None:
        self.hashes = [0] * len(LEVELS)
        self.length = 0
        """Tokens so far; a level longer than this has no hash yet."""

    def add(self, token: int, leaving: Sequence[int]) -> None:
        """Add a token; `leaving` are the tokens n places before it, where there are so many."""
        hashes, length = self.hashes, self.length
        for i, n in enumerate(LEVELS):
            value = hashes[i] * _BASE + token
            if length >= n:
                value -= leaving[i] * _LEAVING[i]
            hashes[i] = value & _MASK
        self.length = length + 1


class Shelf:
    """A ring of token runs.

    Args:
        capacity: most tokens kept, rounded up to a power of two; the ring starts small and doubles.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = _power_of_two(capacity)
        self._allocate(min(self.capacity, SMALLEST))

    def _allocate(self, size: int) -> None:
        self._mask = size - 1
        self._tokens = array("i", [_BREAK]) * size
        self._heads = [array("i", [-1]) * size for _ in LEVELS]
        self._before = [array("i", [-1]) * size for _ in LEVELS]
        self._end = 0
        self.trail = Trail()

    @property
    def size(self) -> int:
        """Tokens that there is room for now."""
        return self._mask + 1

    @property
    def length(self) -> int:
        """Tokens and breaks that were ever added since the last resizing."""
        return self._end

    @property
    def nbytes(self) -> int:
        """Memory of the arrays."""
        return self.size * BYTES_PER_TOKEN

    def tokens(self) -> array[int]:
        """What is kept, oldest first, runs parted by -1."""
        if self._end <= self.size:
            return self._tokens[: self._end]
        cut = self._end & self._mask
        return self._tokens[cut:] + self._tokens[:cut]

    def resize(self, size: int) -> None:
        """Make room for this many tokens, a power of two; of too many the newest stay."""
        kept = np.array(self.tokens()[-size:], np.int32)
        self._allocate(size)
        self._fill(kept)

    def _fill(self, kept: NDArray[np.int32]) -> None:
        """Put tokens into the empty ring: what pushing them one by one does, by whole arrays."""
        count = len(kept)
        np.frombuffer(self._tokens, np.int32)[:count] = kept
        self._end = count
        places = np.arange(count, dtype=np.int32)
        breaks = np.maximum.accumulate(np.where(kept < 0, places, -1)) if count else places
        run = places - breaks  # tokens of the run up to each place; a break has none
        hashes = kept.astype(np.uint64)
        level = 1
        for i, n in enumerate(LEVELS):
            while level < n:  # H of 2n tokens is H of the last n, and the factor of n places times H of those before
                shifted = np.zeros_like(hashes)
                shifted[level:] = hashes[: max(0, count - level)]
                hashes = (hashes + shifted * np.uint64(pow(_BASE, level, _MASK + 1))) & np.uint64(_MASK)
                level *= 2
            valid = places[:-1][run[:-1] >= n]  # the last token has none after it yet
            buckets = (hashes[valid] & np.uint64(self._mask)).astype(np.int32)
            order = np.argsort(buckets, kind="stable")
            sorted_buckets, sorted_places = buckets[order], valid[order]
            same = np.flatnonzero(sorted_buckets[1:] == sorted_buckets[:-1])
            np.frombuffer(self._before[i], np.int32)[sorted_places[same + 1]] = sorted_places[same]
            newest = np.ones(len(order), bool)
            newest[same] = False
            np.frombuffer(self._heads[i], np.int32)[sorted_buckets[newest]] = sorted_places[newest]
            if count and run[-1] >= n:
                self.trail.hashes[i] = int(hashes[-1])
        self.trail.length = int(run[-1]) if count else 0
        for i, n in enumerate(LEVELS):  # a level that is not full yet goes on from all tokens of the run
            if self.trail.length < n:
                value = 0
                for token in kept[count - self.trail.length :].tolist():
                    value = (value * _BASE + token) & _MASK
                self.trail.hashes[i] = value

    def extend(self, tokens: Sequence[int]) -> None:
        """Add many tokens of the run; a long text into an empty shelf goes in at once."""
        if self._end == 0 and len(tokens) > SMALLEST // 4:
            size = self.size
            while size < len(tokens) and size < self.capacity:
                size *= 2
            if size >= len(tokens):
                self._allocate(size)
                self._fill(np.array(tokens, np.int32))
                return
        for token in tokens:
            self.append(token)

    def append(self, token: int) -> None:
        """Add the next token of the run."""
        if self._end == self.size and self.size < self.capacity:
            self.resize(2 * self.size)
        self._push(token)

    def part(self) -> None:
        """End the run: nothing matches across."""
        if self.trail.length:
            self.append(_BREAK)

    def _push(self, token: int) -> None:
        end, mask, trail = self._end, self._mask, self.trail
        length = trail.length
        if length >= LEVELS[0]:  # these n-grams have a token after them only now
            slot = (end - 1) & mask
            for i, n in enumerate(LEVELS):
                if n > length:
                    break
                head = self._heads[i]
                bucket = trail.hashes[i] & mask
                self._before[i][slot] = head[bucket]
                head[bucket] = slot
        tokens = self._tokens
        if token == _BREAK:
            self.trail = Trail()
        else:
            trail.add(token, [tokens[(end - n) & mask] for n in LEVELS])
        tokens[end & mask] = token
        self._end = end + 1

    def find(self, text: Sequence[int], trail: Trail, most: int) -> dict[int, int]:
        """Where the end of a text stood before.

        Args:
            text: the text; only its end is read.
            trail: its hashes.
            most: most places; those of longer matches first, then the newer.

        Returns:
            By the position after the match, the number of tokens that match, at most `DEEPEST`.
        """
        found: dict[int, int] = {}
        end, mask = self._end, self._mask
        for i in range(len(LEVELS) - 1, -1, -1):
            if LEVELS[i] > trail.length:
                continue
            before = self._before[i]
            slot = self._heads[i][trail.hashes[i] & mask]
            youngest = 0
            for _ in range(most):
                age = (end - slot) & mask  # of the position after the n-gram, counted from 1
                if slot < 0 or age <= youngest:
                    break
                youngest = age
                position = end - age + 1
                if position not in found:
                    matched = self._matched(position, text)
                    if matched >= LEVELS[i]:
                        found[position] = matched
                        if len(found) == most:
                            return found
                slot = before[slot]
        return found

    def _matched(self, position: int, text: Sequence[int]) -> int:
        tokens, mask = self._tokens, self._mask
        limit = min(DEEPEST, len(text), position, self.size - (self._end - position))
        for back in range(1, limit + 1):
            if tokens[(position - back) & mask] != text[-back]:
                return back - 1
        return limit

    def at(self, position: int) -> int:
        """The token at a position, negative where the run ends."""
        return self._tokens[position & self._mask] if position < self._end else _BREAK


def _power_of_two(number: int) -> int:
    return max(SMALLEST, 1 << (number - 1).bit_length())
