"""Replay a Mooncake trace with Dynamo's mocker; run by an interpreter that has Dynamo 1.6.

    python dynamo_replay.py [TRACE SPEED NUM_BLOCKS BLOCK_SIZE MAX_BATCHED_TOKENS MAX_CONCURRENCY]

Without arguments it prints the version, and nothing where Dynamo is not installed. No option of
Dynamo's engine is about overlap, host time or the depth of the device queue, so it stands beside
each of our loops alike; its simulated times come from another cost model and are not compared.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import sys
from typing import Any, Final

_TRACE_BLOCK: Final = 512  # prompt tokens that one hash id of a Mooncake trace stands for


def main() -> None:
    """Replay, or tell the version."""
    if importlib.util.find_spec("dynamo") is None:
        return
    if not sys.argv[1:]:
        sys.stdout.write(f"Dynamo {importlib.metadata.version('ai-dynamo-runtime')}\n")
        return
    trace, speed, *limits = sys.argv[1:]
    num_blocks, block_size, tokens, rows = map(int, limits)
    # Dynamo is no dependency of ours, so its types are not there to be checked.
    replay: Any = importlib.import_module("dynamo.replay")
    report = replay.run_trace_replay(
        [trace],
        num_workers=1,
        replay_mode="offline",
        router_mode="round_robin",
        trace_format="mooncake",
        trace_block_size=_TRACE_BLOCK,
        arrival_speedup_ratio=float(speed),
        extra_engine_args={
            "engine": {
                "backend": "vllm",
                "block_size": block_size,
                "num_gpu_blocks": num_blocks,
                "max_num_seqs": rows,
                "max_num_batched_tokens": tokens,
            }
        },
    )
    sys.stdout.write(f"{report.summary['completed_requests']}\n")


if __name__ == "__main__":
    main()
