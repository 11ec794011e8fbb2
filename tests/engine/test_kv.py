"""KV blocks: books, prefix cache, eviction, copy-on-write."""

from __future__ import annotations

import pytest

from outrider.engine import BlockPool, BlockTable


def make(num_blocks: int = 8, **fields: bool) -> tuple[BlockPool, list[tuple[int, int]]]:
    copies: list[tuple[int, int]] = []
    return BlockPool(num_blocks, 4, lambda a, b: copies.append((a, b)), **fields), copies


def admitted(pool: BlockPool, tokens: list[int]) -> BlockTable:
    table = pool.admit(tokens)
    assert table is not None
    return table


def test_a_finished_prefix_is_found_again() -> None:
    pool, _ = make()
    first = admitted(pool, list(range(10)))
    pool.commit(first, list(range(10)), 10)
    blocks = list(first.blocks)
    pool.release(first)
    again = admitted(pool, [*range(8), 99, 98])
    assert again.committed == 8
    assert again.blocks[:2] == blocks[:2]
    pool.check_integrity([again])


@pytest.mark.parametrize("length", [4, 8, 12])
def test_the_last_token_is_never_covered(length: int) -> None:
    """Its logits have to be computed, also when the prompt ends with its block."""
    pool, _ = make()
    tokens = list(range(length))
    first = admitted(pool, tokens)
    pool.commit(first, tokens, length)
    assert admitted(pool, tokens).committed == length - 4


def test_only_committed_tokens_enter_the_prefix_cache() -> None:
    pool, _ = make()
    table = admitted(pool, list(range(6)))
    assert pool.reserve(table, 8)  # two draft tokens would fill the second block
    pool.commit(table, list(range(7)), 7)
    assert [block for _, block in pool.find_prefix(list(range(9)))] == table.blocks[:1]


def test_a_prefix_depends_on_what_is_before_it() -> None:
    pool, _ = make()
    table = admitted(pool, [1, 2, 3, 4, 5, 6, 7, 8, 9])
    pool.commit(table, [1, 2, 3, 4, 5, 6, 7, 8, 9], 9)
    assert pool.find_prefix([5, 6, 7, 8, 9]) == []


def test_the_least_recently_used_prefix_goes_first() -> None:
    pool, _ = make(num_blocks=4)
    for start in (0, 100):
        table = admitted(pool, [start + i for i in range(8)])
        pool.commit(table, [start + i for i in range(8)], 8)
        pool.release(table)
    taken = admitted(pool, [55, 56, 57, 58, 59])  # two blocks, both of the first prefix
    assert pool.find_prefix(list(range(9))) == []
    assert len(pool.find_prefix([100 + i for i in range(9)])) == 2
    pool.check_integrity([taken])


def test_the_tail_of_a_prefix_is_evicted_before_its_head() -> None:
    pool, _ = make(num_blocks=3)
    table = admitted(pool, list(range(8)))
    pool.commit(table, list(range(8)), 8)
    pool.release(table)
    admitted(pool, [50, 51, 52, 53, 54])
    assert len(pool.find_prefix(list(range(9)))) == 1


def test_writing_into_a_shared_tail_copies_it() -> None:
    pool, copies = make()
    parent = admitted(pool, list(range(6)))
    pool.commit(parent, list(range(6)), 6)
    child = pool.fork(parent)
    assert child.blocks == parent.blocks
    assert pool.reserve(child, 7)
    assert copies == [(parent.blocks[1], child.blocks[1])]
    assert child.blocks[0] == parent.blocks[0]
    assert pool.reserve(parent, 7)
    assert len(copies) == 1  # the tail is the parent's own now
    pool.check_integrity([parent, child])


def test_a_fork_on_a_block_boundary_copies_nothing() -> None:
    pool, copies = make()
    parent = admitted(pool, list(range(8)))
    pool.commit(parent, list(range(8)), 8)
    child = pool.fork(parent)
    assert pool.reserve(child, 9)
    assert pool.reserve(parent, 9)
    assert copies == []
    assert child.blocks[2] != parent.blocks[2]


def test_reserve_takes_all_or_nothing() -> None:
    pool, _ = make(num_blocks=2)
    table = admitted(pool, [1, 2, 3])
    assert not pool.reserve(table, 12)
    assert len(table.blocks) == 1
    pool.check_integrity([table])


def test_admission_spares_blocks_and_counts_waking_ones() -> None:
    pool, _ = make(num_blocks=3)
    table = admitted(pool, list(range(8)))
    pool.commit(table, list(range(8)), 8)
    pool.release(table)
    # two cached blocks wake and one is new: nothing is left to spare
    assert pool.admit(list(range(9)), spare=1) is None
    assert pool.admit(list(range(9)), spare=0) is not None


def test_without_prefix_caching_nothing_is_kept() -> None:
    pool, _ = make(prefix_caching=False)
    table = admitted(pool, list(range(8)))
    pool.commit(table, list(range(8)), 8)
    pool.release(table)
    assert pool.find_prefix(list(range(9))) == []
    pool.check_integrity([])


def test_integrity_notices_a_leak() -> None:
    pool, _ = make()
    admitted(pool, [1, 2, 3])
    with pytest.raises(AssertionError, match="references"):
        pool.check_integrity([])
