"""Block keys: which full prompt blocks of a trace have the same content and the same prefix.

Turns the hash ids of a trace, in blocks of the trace's own size, into dense integer keys in blocks
of the kernel's size. Knows no cache.

A hash id stands for a block of tokens *and* everything before it. Where a file uses one id after
different predecessors (ids of the content alone; some published Bailian traces are said to do so),
each (predecessor, id) becomes an identity of its own, so that a key is always safe to share. An id
of a partial last block stands for those tokens only: with another token count it is other content.
"""

from collections.abc import Iterable

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from stepahead_models.traces.columns import Trace


class BlockKeys(Struct, frozen=True, eq=False, kw_only=True):
    """Keys of the full prompt blocks, expanded per request on demand.

    A key is the identity of a block: equal keys are equal content behind an equal prefix. Keys are
    dense, 0 to ``key_count`` - 1, so that an index over them is an array. A **group** is what one
    hash id covers: ``group_blocks`` blocks with consecutive keys, fewer only in the last group of a
    prompt. Group i begins with key ``group_first_keys[i]``; comparing first keys compares groups.

    Attributes:
        block_size: tokens per block.
        key_count: number of distinct keys.
        offsets: entry i to i + 1 delimits the keyed blocks of request i among all keyed blocks;
            int64, shape ``(requests + 1,)``.
        group_blocks: blocks in a whole group, at least 1.
        group_offsets: the same for groups.
        group_first_keys: first key of every group; shape ``(group_offsets[-1],)``.
        steps: what to add to the first key of its group, by block of a prompt; shape ``(blocks,)``,
            long enough for every prompt.
    """

    block_size: int
    key_count: int
    offsets: NDArray[np.int64]
    group_blocks: int
    group_offsets: NDArray[np.int64]
    group_first_keys: NDArray[np.int64]
    steps: NDArray[np.int64]

    def keys_of(self, index: int) -> NDArray[np.int64]:
        """Keys of the request's full prompt blocks from the first on; a new int64 array."""
        groups = slice(self.group_offsets.item(index), self.group_offsets.item(index + 1))
        count = self.block_count_of(index)
        # Adding to a column of first keys, a NumPy call per group inside, costs four times as much.
        keys = self.group_first_keys[groups].repeat(self.group_blocks)[:count]
        keys += self.steps[:count]
        return keys

    def block_count_of(self, index: int) -> int:
        """Count the request's keyed blocks without expanding them."""
        return self.offsets.item(index + 1) - self.offsets.item(index)


def block_keys(trace: Trace, block_size: int) -> BlockKeys:
    """Key every prompt block that lies wholly inside its prompt and is covered by hash ids.

    Requests without hash ids get no keys. Cost is linear in the hash ids, not in the blocks.

    Args:
        trace: the requests.
        block_size: tokens per block of the kernel's cache.

    Raises:
        ValueError: ``block_size`` is below 1, or neither it nor the trace's hash block is a
            multiple of the other.
    """
    if block_size < 1:
        raise ValueError(f"block_size must be at least 1 token, not {block_size}")
    size = trace.hash_block_size
    if trace.hash_ids.size == 0:
        nothing = np.zeros(len(trace) + 1, dtype=np.int64)
        return _block_keys(block_size, 0, nothing, 1, nothing, trace.hash_ids)
    if size % block_size and block_size % size:
        raise ValueError(
            f"trace {trace.name!r} has hash ids for {size} tokens, which a block size of "
            f"{block_size} cannot share; use a divisor or a multiple of {size}"
        )
    identities, tokens, identity_tokens = _identities(trace)
    if block_size > size:
        return _joined(trace, block_size, identities, tokens)
    blocks = identity_tokens // block_size
    first_keys = np.cumsum(blocks) - blocks
    ends = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(tokens // block_size)))
    return _block_keys(
        block_size,
        int(blocks.sum()),
        ends[trace.hash_offsets],
        size // block_size,
        trace.hash_offsets,
        first_keys[identities],
    )


def _block_keys(  # noqa: PLR0913, PLR0917 - names a constructor's fields
    block_size: int,
    key_count: int,
    offsets: NDArray[np.int64],
    group_blocks: int,
    group_offsets: NDArray[np.int64],
    group_first_keys: NDArray[np.int64],
) -> BlockKeys:
    groups_max = int(np.diff(group_offsets).max())
    steps = np.tile(np.arange(group_blocks, dtype=np.int64), groups_max)
    for column in (offsets, group_offsets, group_first_keys, steps):
        column.flags.writeable = False
    return BlockKeys(
        block_size=block_size,
        key_count=key_count,
        offsets=offsets,
        group_blocks=group_blocks,
        group_offsets=group_offsets,
        group_first_keys=group_first_keys,
        steps=steps,
    )


def _joined(
    trace: Trace, block_size: int, identities: NDArray[np.int64], tokens: NDArray[np.int64]
) -> BlockKeys:
    """Keys of blocks that span several hash ids: the last id stands for all before it."""
    per_block = block_size // trace.hash_block_size
    starts = np.repeat(trace.hash_offsets[:-1], np.diff(trace.hash_offsets))
    place = np.arange(identities.size) - starts
    ends_block = (place % per_block == per_block - 1) & (tokens == trace.hash_block_size)
    distinct, keys = _numbered(identities[ends_block])
    ends = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(ends_block)))
    offsets = ends[trace.hash_offsets]
    return _block_keys(block_size, distinct.size, offsets, 1, offsets, keys)


def _identities(
    trace: Trace,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Number the distinct (prefix, id, token count) of all hash ids densely.

    Returns:
        Identity of every hash id, tokens that it covers, and tokens of every identity.
    """
    size, offsets = trace.hash_block_size, trace.hash_offsets
    counts = np.diff(offsets)
    some = counts > 0
    tokens = np.full(trace.hash_ids.size, size, dtype=np.int64)
    lasts = offsets[1:][some] - 1
    tokens[lasts] = np.minimum(size, (trace.input_lengths - (counts - 1) * size)[some])
    ids = trace.hash_ids
    if ids.max() >= 2**63 // (size + 1):
        _, ids = _numbered(ids)  # so that id and token count fit one integer
    pairs, identities = _numbered(ids * (size + 1) + tokens)
    parents = np.concatenate((np.full(1, -1, dtype=np.int64), identities[:-1]))
    parents[offsets[:-1][some]] = -1
    any_parent = np.empty(pairs.size, dtype=np.int64)
    any_parent[identities] = parents
    if bool(np.all(any_parent[identities] == parents)):
        return identities, tokens, pairs % (size + 1)
    chained = _chained(identities.tolist(), (parents < 0).tolist())
    identity_tokens = np.empty(int(chained.max()) + 1, dtype=np.int64)
    identity_tokens[chained] = tokens
    return chained, tokens, identity_tokens


def _numbered(values: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the distinct values in order, and the place of each value among them.

    As `numpy.unique` does, which imports all of `numpy.ma` for it.
    """
    order = values.argsort(kind="stable")
    ordered = values[order]
    begins = np.ones(len(values), dtype=np.bool_)
    begins[1:] = ordered[1:] != ordered[:-1]
    numbers = np.empty(len(values), dtype=np.int64)
    numbers[order] = begins.cumsum() - 1
    return ordered[begins], numbers


def _chained(contents: Iterable[int], is_first: Iterable[bool]) -> NDArray[np.int64]:
    """Number every (identity of the predecessor, content) by first appearance."""
    numbers: dict[tuple[int, int], int] = {}
    chained: list[int] = []
    previous = -1
    for content, first in zip(contents, is_first, strict=True):
        previous = numbers.setdefault((-1 if first else previous, content), len(numbers))
        chained.append(previous)
    return np.array(chained, dtype=np.int64)
