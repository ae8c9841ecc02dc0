"""The kernel's own limits and choices, checked once at construction."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from stepahead.errors import ConfigError


class WaitingOrder(Enum):
    """Which waiting request is next, and, reversed, who is preempted first."""

    FIRST_COME_FIRST_SERVED = "fcfs"
    PRIORITY = "priority"


class SelectionTiming(Enum):
    """When the batch behind the running one is selected."""

    EARLY = "early"
    JUST_IN_TIME = "just-in-time"


class BatchPreference(Enum):
    """Which rows get the token budget first."""

    DECODE_FIRST = "decode-first"
    PREFILL_FIRST = "prefill-first"


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelConfig:
    """Every limit of the kernel; nothing in it grows beyond what is named here.

    Args:
        num_blocks: KV blocks of the pool, at least 1.
        block_size: tokens per KV block, at least 1.
        max_concurrency: rows per batch at most.
        max_num_batched_tokens: tokens per batch at most.
        max_tokens_per_row: tokens of one prompt chunk at most (the largest prefill bucket).
        max_model_len: prompt plus output of one request at most.
        lookahead: batches that may stand outstanding behind the first one; 0 eager, 1 overlap.
        order: order of the waiting line.
        preference: which rows get the budget first.
        timing: when the batch behind the running one is selected.
        late_share_ppm: share of just-in-time preparations that may end after the device, in parts
            per million.
        late_joiners: under just-in-time, selection does not wait; a prepared batch that waits is
            abandoned and selected again for a new arrival if that is still hidden.
        prune: rows whose request has ended are dropped before the dispatch, where the device
            takes a changed batch; otherwise they are masked.
        prefix_caching: reuse the KV blocks of equal prompt prefixes.
        host_pages: KV blocks that fit into the host cache; 0 for none.
        write_through_threshold: prefix hits after which a block is copied to the host; None: never.
        write_back: a block that is about to be reused is copied to the host first.
        layerwise_reload: a request runs while its blocks come from the host, layer by layer.
        load_deadline_ns: a load that takes longer counts as failed; 0 for no deadline.
        remote: blocks that are neither here nor on the host may come from a remote store, as far
            as a lookup found them there.
        eos_token_id: the token that ends a request, or None.
        max_waiting: waiting requests at most; a further arrival is refused.

    Raises:
        ConfigError: a value is out of range; the sentence names the option and the range.
    """

    num_blocks: int
    block_size: int = 16
    max_concurrency: int = 256
    max_num_batched_tokens: int = 8192
    max_tokens_per_row: int = 1 << 30
    max_model_len: int = 131_072
    lookahead: int = 0
    order: WaitingOrder = WaitingOrder.FIRST_COME_FIRST_SERVED
    preference: BatchPreference = BatchPreference.DECODE_FIRST
    timing: SelectionTiming = SelectionTiming.EARLY
    late_share_ppm: int = 10_000
    late_joiners: bool = False
    prune: bool = False
    prefix_caching: bool = True
    host_pages: int = 0
    write_through_threshold: int | None = 2
    write_back: bool = False
    layerwise_reload: bool = False
    load_deadline_ns: int = 0
    remote: bool = False
    eos_token_id: int | None = None
    max_waiting: int = 1 << 20

    def __post_init__(self) -> None:
        for name, low, high in _RANGES:
            value: object = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
                raise ConfigError(
                    option=name, value=value, expected=f"an integer from {low} to {high}"
                )
        for name, low in (("eos_token_id", 0), ("write_through_threshold", 1)):
            given: object = getattr(self, name)
            if given is not None and not (type(given) is int and low <= given <= _INT64_MAX):
                large = type(given) is int and given > _INT64_MAX
                expected = f"None or an integer {'below 2**63' if large else f'>= {low}'}"
                raise ConfigError(option=name, value=given, expected=expected)
        for name, kind in _KINDS:
            choice: object = getattr(self, name)
            if not isinstance(choice, kind):
                raise ConfigError(option=name, value=choice, expected=f"a {kind.__name__}")
        self._check_tiers()

    def _check_tiers(self) -> None:
        for name, needs, there in (
            ("host_pages", "0 without prefix_caching", self.prefix_caching),
            ("remote", "False without prefix_caching", self.prefix_caching),
            ("write_back", "False without host_pages", self.host_pages > 0),
            ("layerwise_reload", "False without host_pages", self.host_pages > 0),
            ("remote", "False with lookahead above 0", not self.lookahead),
        ):
            value: object = getattr(self, name)
            if value and not there:
                raise ConfigError(option=name, value=value, expected=needs)


_INT64_MAX = (1 << 63) - 1
_KINDS: tuple[tuple[str, type], ...] = (
    ("order", WaitingOrder),
    ("preference", BatchPreference),
    ("timing", SelectionTiming),
    ("late_joiners", bool),
    ("prune", bool),
    ("prefix_caching", bool),
    ("write_back", bool),
    ("layerwise_reload", bool),
    ("remote", bool),
)
_RANGES = (
    ("num_blocks", 1, 1 << 30),
    ("block_size", 1, 1 << 20),
    ("max_concurrency", 1, 1 << 16),
    ("max_num_batched_tokens", 1, 1 << 30),
    ("max_tokens_per_row", 1, 1 << 30),
    ("max_model_len", 2, 1 << 30),
    ("lookahead", 0, 8),
    ("late_share_ppm", 1, 500_000),
    ("host_pages", 0, 1 << 30),
    ("load_deadline_ns", 0, 1 << 62),
    ("max_waiting", 1, 1 << 30),
)
