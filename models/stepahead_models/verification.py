"""What rows with drafts compute: every position, of which only the first ones turn out to be valid.

The device cannot know which drafts are right before it has computed them, so it writes the KV of
all of them and samples behind each. What is written behind the accepted ones is wrong, or belongs
to nobody; it is for others to see that nobody reads it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepahead_models.memory import KvMemory
from stepahead_models.seats import SeatTables
from stepahead_models.speculation import leading
from stepahead_models.tokens import HistoryHash, Ints, Words


@dataclass(frozen=True, slots=True)
class Verified:
    """Rows that were verified.

    Args:
        sampled: the tokens sampled at each position, shape ``(1 + most drafts, rows)``; what lies
            below a row's last draft means nothing.
        accepted: how many drafts were right, from the first on without a gap; shape ``(rows,)``.
        ends: the position behind the last accepted one, where the request goes on; as above.
        states: the state of each sequence before it; as above.
        lasts: the token sampled behind the last accepted draft; as above.
    """

    sampled: Ints
    accepted: Ints
    ends: Ints
    states: Words
    lasts: Ints


def verify(  # noqa: PLR0913 - what a row is, by keyword
    model: HistoryHash,
    memory: KvMemory,
    tables: SeatTables,
    *,
    seats: Ints,
    positions: Ints,
    states: Words,
    inputs: Ints,
    counts: Ints,
) -> Verified:
    """Compute rows that each read one sampled token and ``counts`` drafts behind it.

    Args:
        model: the token model.
        memory: read and written through the tables.
        tables: the block tables.
        seats: of the rows, shape ``(rows,)``.
        positions: where each row begins; shape ``(rows,)``.
        states: what each row read just below its position; shape ``(rows,)``.
        inputs: the sampled token and the drafts, shape ``(1 + most drafts, rows)``.
        counts: drafts of each row; shape ``(rows,)``.
    """
    ahead = np.arange(len(inputs), dtype=np.int64)[:, None]
    places, computed = positions + ahead, ahead <= counts
    words = model.contributions(inputs, places)
    words[0] += states
    words = np.cumsum(words, axis=0, dtype=np.uint64)
    depths, columns = computed.nonzero()
    written = places[depths, columns]
    slots = written // memory.block_size
    memory.write(
        tables.blocks_at(seats[columns], slots),
        written - slots * memory.block_size,
        words[depths, columns],
    )
    sampled = model.sample(words)
    if model.eos_token_id is not None:
        sampled[places == tables.eos_position[seats]] = model.eos_token_id
    accepted = leading((inputs[1:] == sampled[:-1]) & computed[1:])
    each = np.arange(len(seats))
    return Verified(
        sampled=sampled,
        accepted=accepted,
        ends=positions + accepted + 1,
        states=words[accepted, each],
        lasts=sampled[accepted, each],
    )
