"""Whether the loops of a comparison did the same work: equal tokens, prefixes, nothing left behind.

Tokens are compared by count and by the checksum of each request's output; a cancelled output is
compared with the reference, which computes one request at a time from its prompt and knows neither
batch nor block.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise

import numpy as np

from stepahead_models.closed_form import ClosedForm
from stepahead_models.record import Outcome, RunRecord
from stepahead_models.tokens import Ints, checksum_words, reference_tokens
from stepahead_specs.counting import counted
from stepahead_tools.runs import Scene

_SHOWN_MAX = 3


def disagreements(scene: Scene, records: Mapping[str, RunRecord]) -> Iterator[str]:
    """Yield one sentence per difference between runs of the same scene, and per fault of a run."""
    for name, record in records.items():
        yield from _faults(scene, name, record)
    for (first, before), (second, after) in pairwise(records.items()):
        yield from _differences(scene, (first, before), (second, after))


def _faults(scene: Scene, name: str, record: RunRecord) -> Iterator[str]:
    if record.leaked_blocks:
        yield f"the {name} loop leaked {counted(record.leaked_blocks, 'KV block')}"
    load = scene.workload
    for request in np.flatnonzero(record.outcomes == Outcome.CANCELLED).tolist():
        count = int(record.output_tokens[request])
        expected = _reference(scene, request, count)
        words = checksum_words(expected, np.arange(count, dtype=np.int64))
        if words.sum(dtype=np.uint64) != record.checksums[request]:
            yield (
                f"the {count} tokens that request {load.request_ids[request]!r} got in the {name} "
                "loop before it was cancelled are no prefix of its reference"
            )


def _reference(scene: Scene, request: int, count: int) -> Ints:
    load, model = scene.workload, scene.model
    eos_at = int(load.eos_at[request])
    if isinstance(model, ClosedForm):
        return model.reference(request, int(load.prompts.lengths[request]), count, eos_at=eos_at)
    return reference_tokens(model, load.prompts, request, count, eos_at=eos_at)


def _differences(
    scene: Scene, one: tuple[str, RunRecord], other: tuple[str, RunRecord]
) -> Iterator[str]:
    (first, before), (second, after) = one, other
    done = [record.outcomes <= Outcome.LENGTH for record in (before, after)]
    both = done[0] & done[1]
    unequal = both & (
        (before.output_tokens != after.output_tokens) | (before.checksums != after.checksums)
    )
    refused = (before.outcomes == Outcome.REFUSED) != (after.outcomes == Outcome.REFUSED)
    for wrong, says in (
        (unequal, f"completed with different tokens in the {first} and the {second} loop"),
        (refused, f"was refused in only one of the {first} and the {second} loop"),
    ):
        found = np.flatnonzero(wrong)
        for request in found[:_SHOWN_MAX].tolist():
            yield f"request {scene.workload.request_ids[request]!r} {says}"
        if len(found) > _SHOWN_MAX:
            yield f"so did {counted(len(found) - _SHOWN_MAX, 'more request')}"
