"""What one request may ask of a running engine.

Owns the rules about single requests: identity, length, and what the engine's configuration
excludes. Sampling values are not looked at.
"""

from collections.abc import Collection
from typing import Final

from msgspec import Struct

from stepahead_models.product.check import (
    UnsupportedRequest,
    context_limit,
    features_in_use,
    refuse_beside,
    refuse_under_loop,
)
from stepahead_models.product.engine import EngineConfig, ModelDescription
from stepahead_models.product.features import Feature
from stepahead_models.product.rules import InvalidOption, Rule, enforce
from stepahead_models.product.versions import DEFAULT_VERSION, PACKAGE, ProductVersion

SOURCE: Final = f"{PACKAGE}, errors and programming interface"


class DuplicateRequestId(InvalidOption):
    """A live request has this id."""


class ContextLengthExceeded(InvalidOption):
    """The request does not fit the context; known before anything is streamed."""


class RequestOptions(Struct, frozen=True, kw_only=True):
    """What a request asks for, as far as it can be refused; lengths in tokens.

    ``max_tokens`` None means whatever the context leaves.
    """

    request_id: str
    prompt_tokens: int
    max_tokens: int | None = None
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    structured_outputs: bool = False
    kv_transfer_params: bool = False


class RequestInEngine(Struct, frozen=True, kw_only=True):
    """A request before an engine: what its rules are about. ``limit`` None is no limit."""

    request: RequestOptions
    live_ids: Collection[str]
    limit: int | None

    @property
    def request_id(self) -> str:
        """The id of the request."""
        return self.request.request_id

    @property
    def prompt_tokens(self) -> str:
        """The length of the prompt beside the limit, for the message."""
        return f"{self.request.prompt_tokens} of {self.limit}"

    @property
    def max_tokens(self) -> str:
        """The length asked for beside the limit, for the message."""
        asked = self.request
        return f"{asked.max_tokens} after {asked.prompt_tokens} of {self.limit}"

    @property
    def min_tokens(self) -> str:
        """The least output beside the limit, for the message."""
        asked = self.request
        return f"{asked.min_tokens} after {asked.prompt_tokens} of {self.limit}"

    def has_room(self, tokens: int) -> bool:
        """Tell whether so many tokens fit the limit."""
        return self.limit is None or tokens <= self.limit


REQUEST_RULES: Final[tuple[Rule[RequestInEngine], ...]] = (
    Rule(
        name="request-id-is-new",
        option="request_id",
        expected="an id that no live request has",
        way_out="choose another id, or wait until that request has ended",
        source=SOURCE,
        holds=lambda asked: asked.request_id not in asked.live_ids,
        error=DuplicateRequestId,
    ),
    Rule(
        name="prompt-fits-the-context",
        option="prompt_tokens",
        expected="a prompt within the context",
        way_out="shorten the prompt",
        source=SOURCE,
        holds=lambda asked: asked.has_room(asked.request.prompt_tokens),
        error=ContextLengthExceeded,
    ),
    Rule(
        name="prompt-and-max-tokens-fit-the-context",
        option="max_tokens",
        expected="prompt and output within the context",
        way_out="lower max_tokens, or leave it out for what is left",
        source=SOURCE,
        holds=lambda asked: asked.has_room(
            asked.request.prompt_tokens + (asked.request.max_tokens or 0)
        ),
        error=ContextLengthExceeded,
    ),
    Rule(
        name="min-tokens-fit-the-context",
        option="min_tokens",
        expected="room for one token and for min_tokens",
        way_out="shorten the prompt, or lower min_tokens",
        source=SOURCE,
        holds=lambda asked: asked.has_room(
            asked.request.prompt_tokens + max(1, asked.request.min_tokens)
        ),
        error=ContextLengthExceeded,
    ),
)


def check_request(
    request: RequestOptions,
    config: EngineConfig,
    model: ModelDescription,
    *,
    live_ids: Collection[str] = (),
    version: ProductVersion = DEFAULT_VERSION,
) -> None:
    """Check one request against the engine that is to serve it.

    Args:
        request: what is asked.
        config: the effective configuration, as `Checked` holds it.
        model: the model that runs.
        live_ids: ids of the requests that have not ended.
        version: whose rows of the table count.

    Raises:
        DuplicateRequestId: the id is taken.
        ContextLengthExceeded: the request does not fit.
        UnsupportedRequest: the configuration excludes what it asks for.
    """
    limit = context_limit(config, model)
    enforce(REQUEST_RULES, RequestInEngine(request=request, live_ids=live_ids, limit=limit))
    asked = {
        Feature.KV_TRANSFER_PARAMS: request.kv_transfer_params,
        Feature.STRUCTURED_OUTPUTS: request.structured_outputs,
        Feature.LOGPROBS: request.logprobs is not None,
        Feature.PROMPT_LOGPROBS: request.prompt_logprobs is not None,
    }
    used = features_in_use(config, model)
    loop = config.scheduler_config.loop
    for feature in (feature for feature, wanted in asked.items() if wanted):
        refuse_under_loop(feature, loop, version, error=UnsupportedRequest)
        refuse_beside(feature, used, loop, version, error=UnsupportedRequest)
