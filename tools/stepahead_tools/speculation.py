"""Speculative decoding as a run sees it: how wide, how often right, and what proposing costs.

The product says who proposes and how many tokens; how good and how fast the proposer is belongs to
its model, which the simulation does not run. Those numbers are options, and assumptions.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from stepahead_models.product.speculation import SpeculativeConfig, SpeculativeMethod
from stepahead_models.speculation import Acceptance, DraftCosts
from stepahead_tools.errors import OptionError, exact
from stepahead_tools.options import RunOptions

_PPM: Final = 1_000_000
_NS_PER_US: Final = 1_000
_COST_US_MAX: Final = 1_000_000_000
#: A pass of the proposer. A draft model reads its weights once: 2.47 GB of Llama-3.2-1B in bf16 at
#: 1.5 TB/s. A prediction head is a layer and a head stage of the target: 0.4 ms + 0.6 ms of
#: rngd-llama-3.1-8b. Assumptions: nobody measured either.
STEP_US: Final = {SpeculativeMethod.DRAFT_MODEL: 1650.0, SpeculativeMethod.MTP: 1000.0}


class Speculation(Struct, frozen=True, kw_only=True):
    """How tokens are proposed.

    Args:
        method: who proposes, for the record.
        num_speculative_tokens: drafts per decode row at most.
        acceptance_ppm: how often a draft is right, given that those before it are; in millionths.
        costs: what proposing takes of the host's time.
    """

    method: SpeculativeMethod
    num_speculative_tokens: int
    acceptance_ppm: int
    costs: DraftCosts

    def acceptance(self, seed: int) -> Acceptance:
        """Return which drafts are right in a run with this seed."""
        return Acceptance(seed=seed, probability_ppm=self.acceptance_ppm)


def speculation(options: RunOptions, config: SpeculativeConfig | None) -> Speculation | None:
    """Return how tokens are proposed, or None where none are.

    Raises:
        OptionError: a value is out of range.
    """
    if not 0 <= options.draft_acceptance <= 1:
        raise OptionError(
            f"--draft-acceptance {exact(options.draft_acceptance)} is out of range; give a "
            "probability from 0 to 1"
        )
    for flag, cost in (
        ("--draft-step-us", options.draft_step_us),
        ("--draft-token-us", options.draft_token_us),
    ):
        if cost is not None and not 0 <= cost <= _COST_US_MAX:
            raise OptionError(
                f"{flag} {exact(cost)} is out of range; give a number from 0 to {_COST_US_MAX}"
            )
    if config is None:
        return None
    step_us = STEP_US[config.method] if options.draft_step_us is None else options.draft_step_us
    return Speculation(
        method=config.method,
        num_speculative_tokens=config.num_speculative_tokens,
        acceptance_ppm=round(options.draft_acceptance * _PPM),
        costs=DraftCosts(
            step_ns=round(step_us * _NS_PER_US),
            token_ns=round(options.draft_token_us * _NS_PER_US),
        ),
    )
