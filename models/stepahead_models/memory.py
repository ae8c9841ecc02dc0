"""Simulated KV memory: one word per position, reached through block tables only.

The word at a position is the state of the sequence after it, so a row that reads one word reads
its whole history, *as it stands in the memory*: whoever overwrote a block that is still in use
changes what its owner samples next.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from stepahead_models.tokens import Ints, Words


class KvMemory:
    """The words of ``num_blocks`` blocks of ``block_size`` positions.

    Args:
        num_blocks: blocks of the pool.
        block_size: positions per block.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks: Final = num_blocks
        self.block_size: Final = block_size
        self._blocks: Final = np.zeros((num_blocks, block_size), dtype=np.uint64)
        self._words: Final = self._blocks.reshape(-1)

    def read(self, blocks: Ints, places: Ints) -> Words:
        """Return the words at ``places`` within ``blocks``; shapes alike."""
        words: Words = self._words.take(blocks * self.block_size + places)
        return words

    def read_one(self, block: int, place: int) -> int:
        """Return the word at one place of one block."""
        return int(self._blocks[block, place])

    def ends(self, blocks: Ints) -> Words:
        """Return the last word of each block."""
        words: Words = self._blocks[blocks, self.block_size - 1]
        return words

    def whole(self, blocks: Ints) -> Words:
        """Return a copy of the words of whole blocks, shape ``(blocks, block_size)``."""
        return self._blocks[blocks]

    def replace(self, blocks: Ints, contents: Words | int) -> None:
        """Write whole blocks; ``contents`` has shape ``(blocks, block_size)`` or is one word."""
        self._blocks[blocks] = contents

    def write(self, blocks: Ints, places: Ints, words: Words) -> None:
        """Write one word at each place; shapes alike."""
        self._words[blocks * self.block_size + places] = words

    def write_run(self, table: Ints, position: int, words: Words) -> None:
        """Write consecutive positions of one sequence through its block table.

        Args:
            table: the blocks of the sequence, shallowest first.
            position: the first position.
            words: shape ``(positions,)``.
        """
        size = self.block_size
        slot, place = divmod(position, size)
        done = 0
        if place:
            done = min(size - place, len(words))
            self._blocks[table[slot], place : place + done] = words[:done]
            slot += 1
        whole = (len(words) - done) // size
        if whole:
            end = done + whole * size
            self._blocks[table[slot : slot + whole]] = words[done:end].reshape(whole, size)
            done, slot = end, slot + whole
        if done < len(words):
            self._blocks[table[slot], : len(words) - done] = words[done:]
