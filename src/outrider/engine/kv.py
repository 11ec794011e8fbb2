"""KV blocks: reference counts, a prefix cache by chained hash, LRU eviction, copy-on-write of a shared tail."""

from __future__ import annotations

import hashlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np


@dataclass(slots=True)
class BlockTable:
    """The blocks of one sequence. Only `BlockPool` changes it."""

    blocks: list[int] = field(default_factory=list)
    committed: int = 0
    """Tokens from the start whose keys and values are final; a rejected draft never counts."""
    hashes: list[bytes] = field(default_factory=list)
    """Chained hash of each full committed block."""


class BlockPool:
    """Every KV block of a runner, free, cached or in use.

    A block enters the prefix cache when every token in it is committed, and is never written again. A cached block
    that nobody uses stays until its memory is needed; the least recently used goes first.

    Args:
        num_blocks: blocks that the runner has.
        block_size: tokens in a block.
        copy: copies one block's keys and values over another's.
        prefix_caching: whether finished prefixes are found again.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        copy: Callable[[int, int], None],
        *,
        prefix_caching: bool = True,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._copy = copy
        self._caching = prefix_caching
        self._references = [0] * num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))
        self._cached: dict[bytes, int] = {}
        self._hash_of: dict[int, bytes] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()  # cached, unused, oldest first

    @property
    def available(self) -> int:
        """Blocks that can be taken now: free ones, and cached ones that nobody uses."""
        return len(self._free) + len(self._idle)

    @property
    def used(self) -> int:
        """Blocks that sequences hold."""
        return self.num_blocks - self.available

    def blocks_for(self, length: int) -> int:
        """Blocks that hold this many tokens."""
        return -(-length // self.block_size)

    def find_prefix(self, tokens: Sequence[int]) -> list[tuple[bytes, int]]:
        """The cached full blocks that `tokens` start with, as (hash, block). Takes nothing.

        The last token is never covered: its logits have to be computed.
        """
        found: list[tuple[bytes, int]] = []
        if not self._caching:
            return found
        parent = b""
        for start in range(0, len(tokens) - self.block_size, self.block_size):
            parent = _chain(parent, tokens[start : start + self.block_size])
            block = self._cached.get(parent)
            if block is None:
                break
            found.append((parent, block))
        return found

    def admit(self, tokens: Sequence[int], *, spare: int = 0, use_prefix: bool = True) -> BlockTable | None:
        """A table with room for `tokens`, sharing what is cached, or None if `spare` blocks would not be left."""
        prefix = self.find_prefix(tokens) if use_prefix else []
        new = self.blocks_for(len(tokens)) - len(prefix)
        waking = sum(1 for _, block in prefix if self._references[block] == 0)
        if new > self.available - waking - spare:
            return None
        table = BlockTable()
        for digest, block in prefix:
            self._acquire(block)
            table.blocks.append(block)
            table.hashes.append(digest)
        table.committed = len(table.blocks) * self.block_size
        table.blocks.extend(self._take() for _ in range(new))
        return table

    def reserve(self, table: BlockTable, length: int) -> bool:
        """Make positions from `committed` up to `length` writable, copying a shared tail; all or nothing."""
        new = max(0, self.blocks_for(length) - len(table.blocks))
        first = table.committed // self.block_size
        last = min(len(table.blocks), self.blocks_for(length))
        shared = [index for index in range(first, last) if self._references[table.blocks[index]] > 1]
        if new + len(shared) > self.available:
            return False
        for index in shared:
            block = self._take()
            self._copy(table.blocks[index], block)
            self._drop(table.blocks[index])
            table.blocks[index] = block
        table.blocks.extend(self._take() for _ in range(new))
        return True

    def capacity(self, table: BlockTable) -> int:
        """Positions that the table's blocks hold."""
        return len(table.blocks) * self.block_size

    def commit(self, table: BlockTable, tokens: Sequence[int], length: int) -> None:
        """Declare the first `length` positions final; their tokens are the first of `tokens`."""
        table.committed = length
        if not self._caching:
            return
        for index in range(len(table.hashes), length // self.block_size):
            start = index * self.block_size
            parent = table.hashes[-1] if table.hashes else b""
            digest = _chain(parent, tokens[start : start + self.block_size])
            table.hashes.append(digest)
            block = table.blocks[index]
            if digest not in self._cached and block not in self._hash_of:
                self._cached[digest] = block
                self._hash_of[block] = digest

    def fork(self, table: BlockTable) -> BlockTable:
        """A second table over the same committed tokens; whoever writes into the shared tail first copies it."""
        blocks = table.blocks[: self.blocks_for(table.committed)]
        for block in blocks:
            self._acquire(block)
        return BlockTable(blocks, table.committed, list(table.hashes))

    def release(self, table: BlockTable) -> None:
        """Give every block back; the last block first, so that a prefix outlives what follows it."""
        for block in reversed(table.blocks):
            self._drop(block)
        table.blocks = []
        table.hashes = []
        table.committed = 0

    def _acquire(self, block: int) -> None:
        if self._references[block] == 0:
            del self._idle[block]
        self._references[block] += 1

    def _take(self) -> int:
        if not self._free:
            self._evict()
        block = self._free.pop()
        self._references[block] = 1
        return block

    def _drop(self, block: int) -> None:
        self._references[block] -= 1
        if self._references[block] == 0:
            if block in self._hash_of:
                self._idle[block] = None
            else:
                self._free.append(block)

    def _evict(self) -> None:
        block, _ = self._idle.popitem(last=False)
        del self._cached[self._hash_of.pop(block)]
        self._free.append(block)

    def check_integrity(self, tables: Iterable[BlockTable]) -> None:
        """Compare the books with the tables of all live sequences.

        Raises:
            AssertionError: names the block or table that is wrong.
        """
        held: Counter[int] = Counter()
        for table in tables:
            held.update(table.blocks)
            _require(len(set(table.blocks)) == len(table.blocks), f"a table holds a block twice: {table.blocks}")
            _require(table.committed <= self.capacity(table), f"{table.committed} committed in {table.blocks}")
            _require(len(table.hashes) <= table.committed // self.block_size, f"uncommitted block hashed: {table}")
        for block, count in enumerate(self._references):
            _require(held[block] == count, f"block {block} counts {count} references and has {held[block]}")
        states = Counter(self._free) + Counter(list(self._idle)) + Counter(set(held))
        _require(len(states) == self.num_blocks, f"{self.num_blocks - len(states)} blocks are lost")
        _require(max(states.values(), default=1) == 1, "a block is in two states at once")
        _require(set(self._cached.values()) == set(self._hash_of), "cache and block hashes differ")
        for digest, block in self._cached.items():
            _require(self._hash_of[block] == digest, f"block {block} is cached under another hash")
        for block in self._idle:
            _require(block in self._hash_of, f"block {block} is idle and not cached")


def _chain(parent: bytes, tokens: Sequence[int]) -> bytes:
    return hashlib.blake2b(parent + np.array(tokens, np.int32).tobytes(), digest_size=16).digest()


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise AssertionError(message)
