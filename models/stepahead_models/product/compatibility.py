"""The compatibility table: what goes with which loop, and with what else, by product version.

This is the only copy. The configuration check, the documentation and the tests read it. How to
read it: the row that counts is the newest one whose ``since`` is included in the version. Every
feature has a row for 2026.4. `COMBINATIONS` lists only pairs that do not simply work.
"""

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Final, TypeVar

from msgspec import Struct

from stepahead_models.product.features import SWITCHABLE, Feature
from stepahead_models.product.loops import SchedulingLoop
from stepahead_models.product.options import SCHEDULER
from stepahead_models.product.versions import (
    DEFAULT_VERSION,
    INFERRED,
    OVERLAP_PAGE,
    PACKAGE,
    ProductVersion,
    release_notes,
)

RESTART: Final = "restart with --no-enable-overlap-scheduling or SchedulingLoop.EAGER"

B0: Final = ProductVersion.V2026_5_B0
B1: Final = ProductVersion.V2026_5_B1
B2: Final = ProductVersion.V2026_5_B2
B3: Final = ProductVersion.V2026_5_B3


class Verdict(Enum):
    """What happens at the start."""

    SUPPORTED = "supported"
    REFUSED = "refused"
    DISABLED = "disabled with warning"


class Row(Struct, frozen=True, kw_only=True):
    """What the loops do about a feature, from one version on; ``reason`` is a clause or empty."""

    feature: Feature
    since: ProductVersion
    eager: Verdict
    overlap: Verdict
    reason: str
    source: str


class Combination(Struct, frozen=True, kw_only=True):
    """What happens to ``feature`` where ``beside`` is in use too, from one version on."""

    feature: Feature
    beside: Feature
    since: ProductVersion
    verdict: Verdict
    source: str


R = TypeVar("R", Row, Combination)


def _row(  # noqa: PLR0913 (one argument per column)
    feature: Feature,
    eager: Verdict,
    overlap: Verdict,
    *,
    reason: str = "",
    since: ProductVersion = DEFAULT_VERSION,
    source: str = OVERLAP_PAGE,
) -> Row:
    return Row(
        feature=feature, since=since, eager=eager, overlap=overlap, reason=reason, source=source
    )


_YES, _NO, _OFF = Verdict.SUPPORTED, Verdict.REFUSED, Verdict.DISABLED
_NO_SAMPLER: Final = "the artifact has no sampling kernel"
_NO_BLOCKS: Final = "preparing ahead assumes decode blocks that speculation does not have"
_BOTH: Final = f"{OVERLAP_PAGE}; reason: {PACKAGE}, configuration types"

COMPATIBILITY: Final = (
    _row(Feature.TEXT_GENERATION, _YES, _YES),
    _row(
        Feature.VISION_LANGUAGE,
        _YES,
        _NO,
        reason="requests that hold only text are no exception",
    ),
    _row(Feature.VISION_LANGUAGE, _YES, _YES, since=B0, source=release_notes(B0)),
    _row(Feature.POOLING, _YES, _NO, reason="they have no decode phase"),
    _row(Feature.L1_PREFIX_CACHE, _YES, _YES),
    _row(Feature.L2_HOST_CACHE, _YES, _YES),
    _row(Feature.LAYERWISE_RELOAD, _YES, _YES),
    _row(Feature.NPU_SAMPLING, _YES, _YES),
    _row(
        Feature.NPU_SAMPLING_WITHOUT_SAMPLER,
        _NO,
        _NO,
        reason=_NO_SAMPLER,
        source=f"{PACKAGE}, configuration types",
    ),
    _row(
        Feature.NPU_SAMPLING_WITHOUT_SAMPLER,
        _OFF,
        _OFF,
        reason=f"{_NO_SAMPLER}, and sampling on the NPU is the default here",
        since=B2,
        source=INFERRED,
    ),
    _row(Feature.SPECULATIVE_DRAFT, _YES, _NO, reason=_NO_BLOCKS, source=_BOTH),
    _row(Feature.SPECULATIVE_DRAFT, _YES, _YES, since=B3, source=release_notes(B3)),
    _row(Feature.SPECULATIVE_DRAFT_OTHER, _YES, _NO, reason=_NO_BLOCKS, source=_BOTH),
    _row(Feature.SPECULATIVE_MTP, _YES, _NO, reason=_NO_BLOCKS, source=_BOTH),
    _row(Feature.L3_REMOTE_CACHE, _YES, _OFF, reason="even where it is configured"),
    _row(Feature.L3_REMOTE_CACHE, _YES, _YES, since=B0, source=release_notes(B0)),
    _row(
        Feature.DEEPER_NPU_QUEUE,
        _YES,
        _NO,
        reason="preparing ahead on the CPU needs no deeper queue of the NPU",
    ),
    _row(Feature.KV_TRANSFER, _YES, _YES, source=INFERRED),
    _row(Feature.KV_TRANSFER_PARAMS, _YES, _YES, source=INFERRED),
    _row(Feature.STRUCTURED_OUTPUTS, _YES, _YES, source=INFERRED),
    _row(Feature.LOGPROBS, _YES, _YES, source=INFERRED),
    _row(Feature.PROMPT_LOGPROBS, _YES, _YES, source=INFERRED),
)

SPECULATIVE: Final = (
    Feature.SPECULATIVE_DRAFT,
    Feature.SPECULATIVE_DRAFT_OTHER,
    Feature.SPECULATIVE_MTP,
)
REFUSED_UNDER_SPECULATION: Final = (
    Feature.LAYERWISE_RELOAD,
    Feature.KV_TRANSFER_PARAMS,
    Feature.STRUCTURED_OUTPUTS,
    Feature.LOGPROBS,
    Feature.PROMPT_LOGPROBS,
)

COMBINATIONS: Final = (
    *(
        Combination(
            feature=feature,
            beside=speculative,
            since=DEFAULT_VERSION,
            verdict=Verdict.REFUSED,
            source=f"{PACKAGE}, speculative configuration and sampling parameters",
        )
        for feature in REFUSED_UNDER_SPECULATION
        for speculative in SPECULATIVE
    ),
    Combination(
        feature=Feature.LAYERWISE_RELOAD,
        beside=Feature.KV_TRANSFER,
        since=DEFAULT_VERSION,
        verdict=Verdict.REFUSED,
        source=f"{PACKAGE}, configuration types",
    ),
    *(
        Combination(
            feature=Feature.NPU_SAMPLING,
            beside=speculative,
            since=B2,
            verdict=Verdict.DISABLED,
            source=release_notes(B2),
        )
        for speculative in SPECULATIVE
    ),
    Combination(
        feature=Feature.LOGPROBS,
        beside=Feature.NPU_SAMPLING,
        since=DEFAULT_VERSION,
        verdict=Verdict.REFUSED,
        source=f"{INFERRED}; 2026.5.0b1 announces it",
    ),
    Combination(
        feature=Feature.LOGPROBS,
        beside=Feature.NPU_SAMPLING,
        since=B1,
        verdict=Verdict.SUPPORTED,
        source=release_notes(B1),
    ),
)

# Defaults that a later version changed, by dotted field: (from which version, the new default).
CHANGED_DEFAULTS: Final = {
    f"{SCHEDULER}.enable_npu_sampling": (B2, True),
}


class CompatibilityTableError(Exception):
    """The table is not well formed."""


def row_for(feature: Feature, version: ProductVersion = DEFAULT_VERSION) -> Row:
    """Return the row that counts for a feature in a version."""
    return _newest((row for row in COMPATIBILITY if row.feature is feature), version)


def verdict_for(
    feature: Feature, loop: SchedulingLoop, version: ProductVersion = DEFAULT_VERSION
) -> Verdict:
    """Return what a loop does about a feature in a version; just-in-time does what overlap does."""
    row = row_for(feature, version)
    return row.eager if loop.compatibility is SchedulingLoop.EAGER else row.overlap


def combination_for(
    feature: Feature, beside: Feature, version: ProductVersion = DEFAULT_VERSION
) -> Verdict:
    """Return what happens to a feature where another is in use too; what is not listed works."""
    rows = [
        pair
        for pair in COMBINATIONS
        if pair.feature is feature and pair.beside is beside and version.includes(pair.since)
    ]
    return _newest(rows, version).verdict if rows else Verdict.SUPPORTED


def check_table(rows: Sequence[Row], combinations: Sequence[Combination]) -> None:
    """Check that each feature has a row for 2026.4, and nothing two rows for one version.

    Rows may switch off only what the configuration check can do without.

    Raises:
        CompatibilityTableError: it is not so; the sentence names the feature.
    """
    keys = [(row.feature, row.since) for row in rows]
    for feature in Feature:
        if (feature, DEFAULT_VERSION) not in keys:
            raise CompatibilityTableError(
                f"{feature.name} has no row for {DEFAULT_VERSION.value}; add one"
            )
    for feature, since in keys:
        if keys.count((feature, since)) > 1:
            raise CompatibilityTableError(
                f"{feature.name} has two rows for {since.value}; leave one out"
            )
    disabled = [row.feature for row in rows if Verdict.DISABLED in {row.eager, row.overlap}]
    disabled += [pair.feature for pair in combinations if pair.verdict is Verdict.DISABLED]
    for feature in disabled:
        if feature not in SWITCHABLE:
            raise CompatibilityTableError(
                f"{feature.name} is switched off by a row, and the check cannot start without it; "
                "refuse it instead"
            )
    pairs = [(pair.feature, pair.beside, pair.since) for pair in combinations]
    for feature, beside, since in pairs:
        if pairs.count((feature, beside, since)) > 1:
            raise CompatibilityTableError(
                f"{feature.name} beside {beside.name} has two rows for {since.value}; leave one out"
            )


def _newest(rows: Iterable[R], version: ProductVersion) -> R:
    order = tuple(ProductVersion)
    counting = [row for row in rows if version.includes(row.since)]
    return max(counting, key=lambda row: order.index(row.since))


check_table(COMPATIBILITY, COMBINATIONS)
