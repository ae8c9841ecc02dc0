"""Print the hit rate of the prefix cache beside a count from the trace, and why it is not more.

    .venv/bin/python tools/bench/hit_rate.py TRACE --block-size 512                  # one at a time
    .venv/bin/python tools/bench/hit_rate.py TRACE --block-size 512 --recorded       # as recorded

The cache is unbounded: KV memory has a block for every prompt block and output of the trace, and
``max_model_len`` is above the longest prompt, whatever the device profile says.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from msgspec.structs import replace

from bench.scripts import count, finish
from stepahead_models.profiles import load_profile
from stepahead_models.traces import Trace, block_keys, read_trace
from stepahead_tools.errors import OptionError
from stepahead_tools.loops import EAGER
from stepahead_tools.options import RunOptions
from stepahead_tools.pacing import Pacing
from stepahead_tools.prefix_hits import HitWatch, Reuse, count_reuse
from stepahead_tools.runs import run_loop, set_up
from stepahead_tools.settings import resolve


def main() -> None:
    """Count, run, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trace", type=Path, help="with prefix hashes")
    parser.add_argument("--block-size", type=count, default=512)
    parser.add_argument("--requests", type=count, help="the first so many; default: all")
    parser.add_argument("--device", default="roofline-rngd")
    parser.add_argument("--recorded", action="store_true", help="arrivals as recorded")
    parser.add_argument("--num-blocks", type=count, help="default: unbounded")
    options = parser.parse_args()
    trace = read_trace(options.trace)
    if options.requests is not None:
        trace = trace.limit(options.requests)
    size = options.block_size
    reuse = counted(trace, size)
    unbounded = int((-(-(trace.input_lengths + trace.output_lengths) // size)).sum())
    profile = load_profile(options.device)
    settings = resolve(
        RunOptions(
            trace=trace.name,
            unchecked=True,
            block_size=size,
            num_blocks=options.num_blocks or unbounded,
        ),
        profile,
    )
    longest = int((trace.input_lengths + trace.output_lengths).max()) + 1
    settings = replace(settings, max_model_len=max(settings.max_model_len, longest))
    pacing = Pacing("recorded") if options.recorded else Pacing("concurrency", 1)
    keys = block_keys(trace, size)
    watch = HitWatch(size, keys.key_count)
    scene = set_up(trace, replace(settings, pacing=pacing), profile, None)
    record = run_loop(scene, EAGER, observers=(watch,))
    hits, refused = record.counters["hit_tokens"], record.counters["refused"]
    say(f"prompts      {reuse.tokens:,} tokens in {reuse.blocks:,} blocks of {size}")
    say(
        f"trace count  {part(reuse.hit_blocks, reuse.blocks)} of blocks, "
        f"{part(reuse.hit_tokens, reuse.tokens)} of tokens"
    )
    say(
        f"replay       {part(hits // size, reuse.blocks)} of blocks, "
        f"{part(hits, reuse.tokens)} of tokens; {refused} requests refused"
    )
    say(f"seen before  {part(reuse.seen, reuse.tokens)} of tokens; not hit, of all tokens:")
    short = watch.shortfall
    for name, tokens in (
        ("partial block", reuse.partial_tokens),
        ("last token", reuse.last_tokens),
        ("prefix still in flight", short.in_flight * size),
        ("evicted", short.evicted * size),
    ):
        say(f"  {name:<24} {part(tokens, reuse.tokens)}")


def counted(trace: Trace, size: int) -> Reuse:
    """Count what the trace alone tells.

    Raises:
        OptionError: the block size cannot share its prompts.
    """
    try:
        return count_reuse(trace, size)
    except ValueError as error:
        raise OptionError(f"--block-size {size} is not usable: {error}") from error


def part(some: int, whole: int) -> str:
    """Return a share with its count."""
    return f"{100 * some / whole:5.1f} % ({some:,})"


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    finish(main)
