"""On a real trace, no cache changes a token: checked runs from the options of the command line."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from stepahead_models.profiles import load_profile
from stepahead_models.record import RunRecord
from stepahead_models.traces import bundled_trace, read_trace
from stepahead_tools.loops import EAGER, OVERLAP, Loop
from stepahead_tools.options import RunOptions
from stepahead_tools.pacing import Pacing
from stepahead_tools.runs import run_loop, set_up
from stepahead_tools.settings import resolve

SLICE = read_trace(bundled_trace()).limit(40)
HOST: dict[str, Any] = {
    "experimental_kv_offload_host_memory_gb": 64.0,
    "experimental_kv_offload_write_back": True,
}
LAYERS: dict[str, Any] = {**HOST, "experimental_kv_offload_overlap_l2_reload": True}


def _run(loop: Loop, **options: Any) -> RunRecord:  # noqa: ANN401 # options of the command line
    profile = load_profile("rngd-llama-3.1-8b")
    asked = RunOptions(trace=SLICE.name, block_size=512, num_blocks=250, **options)
    settings = replace(resolve(asked, profile), pacing=Pacing("concurrency", 8))
    return run_loop(set_up(SLICE, settings, profile, None), loop)


@pytest.mark.parametrize("loop", [EAGER, OVERLAP], ids=["eager", "overlap"])
def test_no_cache_changes_a_token_of_the_bundled_trace(loop: Loop) -> None:
    """Without a cache, with L1, with a host cache, and layer by layer: one digest."""
    nothing = _run(loop, enable_prefix_caching=False)
    runs = [_run(loop), _run(loop, **HOST), _run(loop, **LAYERS)]
    assert {run.tokens_digest for run in runs} == {nothing.tokens_digest}
    assert runs[0].counters["hit_tokens"] > nothing.counters["hit_tokens"] == 0
    assert runs[1].counters["stored_blocks"] > 0


def test_drafts_change_no_token_beside_any_tier() -> None:
    """Under the eager loop, with a host cache and a remote store."""
    spec = '{"method": "mtp", "num_speculative_tokens": 3}'
    drafts = {"experimental_speculative_config": spec, "draft_acceptance": 0.6}
    nothing = _run(EAGER, enable_prefix_caching=False)
    for tiers in ({"enable_prefix_caching": False}, {}, HOST, {**HOST, "l3_enabled": True}):
        run = _run(EAGER, **tiers, **drafts)
        assert run.tokens_digest == nothing.tokens_digest
        assert run.leaked_blocks == 0
        assert 0 < run.counters["accepted_tokens"] < run.counters["drafted_tokens"]
        if "experimental_kv_offload_write_back" in tiers:
            assert run.counters["stored_blocks"] > 0
