"""Runs of small random workloads, one line each: what happened, and what came out, as digests.

    python small_runs.py SEEDS FOLDER

`test_same_bytes.py` starts it with the compiled and with the pure build. Journals are written to
the folder.
"""

from __future__ import annotations

import hashlib
import sys
from dataclasses import fields, replace
from itertools import product
from pathlib import Path
from typing import Any

from stepahead import Kernel, KernelConfig, SelectionTiming
from stepahead_models.closed_form import ClosedForm
from stepahead_models.examples import VOCABULARY, mixed_workload, roofline_device
from stepahead_models.journal import JournalWriter
from stepahead_models.record import RunRecord
from stepahead_models.simulation import Simulation
from stepahead_models.tokens import HistoryHash

EAGER = KernelConfig(
    num_blocks=80,
    block_size=4,
    max_concurrency=8,
    max_num_batched_tokens=64,
    max_model_len=256,
    eos_token_id=7,
)
LOOPS = {
    "eager": EAGER,
    "overlap": replace(EAGER, lookahead=1),
    "pruning": replace(EAGER, lookahead=1, prune=True),
    "deeper": replace(EAGER, lookahead=3, num_blocks=90),
    "just in time": replace(EAGER, lookahead=1, timing=SelectionTiming.JUST_IN_TIME),
}
MODELS: dict[str, HistoryHash | ClosedForm] = {
    "checked": HistoryHash(vocab_size=VOCABULARY, eos_token_id=7),
    "unchecked": ClosedForm(vocab_size=VOCABULARY, eos_token_id=7),
}


def digest(record: RunRecord) -> str:
    """Return a digest of every field of a record."""
    found = hashlib.sha256()
    for field in fields(record):
        value: Any = getattr(record, field.name)
        written = value.tobytes() if hasattr(value, "tobytes") else repr(value).encode()
        found.update(field.name.encode() + b" " + written)
    return found.hexdigest()


def main() -> None:
    """Run and print."""
    seeds, folder = int(sys.argv[1]), Path(sys.argv[2])
    for seed, (loop, config), (name, model), stretches in product(
        range(seeds), LOOPS.items(), MODELS.items(), (False, True)
    ):
        kernel = Kernel(config)
        words = [str(seed), loop, name, "stretches" if stretches else "steps"]
        with JournalWriter(folder / f"{'-'.join(words)}.jsonl", kernel) as journal:
            record = Simulation(
                kernel,
                mixed_workload(seed, config.block_size),
                roofline_device(1 + 9 * (seed % 2)),
                model,
                stretches=stretches,
                keep_tokens=True,
                observers=[journal],
            ).run()
        sys.stdout.write(f"{' '.join(words)}: {digest(record)} {kernel.digest()}\n")


if __name__ == "__main__":
    main()
